"""Allocates through the hook from many stacks and threads and records the `sys._getframe` stack of each.

Needs neither a GPU nor PyTorch: it calls memlab's hook by its symbol, as PyTorch's allocator does, with the GIL released
(ctypes does that). Each allocation has a unique address. The expected stacks go to the file in argv[1]: {"address":
[["file", line, "function"], ...innermost first]}. The innermost line is the one of the ctypes call.
"""

import ctypes
import json
import sys
import threading

hook = ctypes.CDLL(None)._ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE
hook.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint16)
hook.restype = None
CUDA_DEVICE_0 = 0x0001

expected = {}


def allocate(address):
    frame, stack = sys._getframe(), []
    while frame is not None:
        code = frame.f_code
        stack.append([code.co_filename, frame.f_lineno, getattr(code, "co_qualname", None) or with_class(frame)])
        frame = frame.f_back
    stack[0][1] += 3  # From the line that reads `f_lineno` to the line that allocates.
    hook(address, 512, 0, 0, CUDA_DEVICE_0)
    expected[address] = stack


def with_class(frame):
    """Before CPython 3.11, code objects have no qualified names, and memlab uses the class of the object."""
    code = frame.f_code
    first = code.co_varnames[0] if code.co_argcount else ""
    if first == "self" or (first == "cls" and isinstance(frame.f_locals[first], type)):
        thing = frame.f_locals[first]
        return f"{(thing if first == 'cls' else type(thing)).__name__}.{code.co_name}"
    return code.co_name


def recurse(depth, address):
    if depth == 0:
        allocate(address)
    elif depth % 3 == 0:
        recurse(depth - 1, address)
    else:
        [recurse(depth - 1, address) for _ in range(1)]


def generator(address):
    for offset in range(3):
        yield allocate(address + offset * 512)


class Größe:  # Names need not be ASCII.
    def méthode(self, address):
        allocate(address)

    def enclosed(self, address):
        (lambda: self.méthode(address))()

    @classmethod
    def of_class(cls, address):
        allocate(address)

    def __enter__(self):
        allocate(self.address)
        return self

    def __exit__(self, *_):
        allocate(self.address + 512)


def made_anew(address):
    """Code objects are created and freed at reused addresses."""
    for number in range(50):
        scope = {"allocate": allocate}
        source = "\n" * number + f"def fresh_{number}(address):\n\n    allocate(address)\n"
        exec(compile(source, f"fresh-{number}.py", "exec"), scope)
        scope[f"fresh_{number}"](address + number * 512)


def in_turn(address):
    """The same function at the same depth, from different lines."""
    allocate(address)
    allocate(address + 512)
    lower = (
        allocate(address + 1024),
        allocate(address + 1536),
    )
    return lower


def work(base):
    for depth in (0, 1, 2, 5, 40, 200):
        recurse(depth, base + depth * 512)
    for _ in generator(base + 300 * 512):
        pass
    thing = Größe()
    thing.address = base + 310 * 512
    thing.méthode(base + 309 * 512)
    thing.enclosed(base + 316 * 512)
    Größe.of_class(base + 317 * 512)
    with thing:
        sorted([3, 1, 2], key=lambda number: allocate(base + (320 + number) * 512) or number)
    made_anew(base + 400 * 512)
    in_turn(base + 500 * 512)


def main():
    work(1 << 32)
    threads = [threading.Thread(target=work, args=((2 + number) << 32,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with open(sys.argv[1], "w") as file:
        json.dump(expected, file)


main()
