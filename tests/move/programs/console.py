"""Runs each line of stdin as Python and answers with a line of JSON: its value or the error.

Calls the driver through ctypes, so that no other library is involved. Each allocation knows its expected bytes.
"""

import ctypes
import json
import os
import random
import subprocess
import sys
import threading
from contextlib import suppress

import gate

MIB = 1 << 20
PAGE = 2 * MIB
PATIENCE_S = 600
cu = ctypes.CDLL("libcuda.so.1")
random.seed(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
__all__ = ["suppress"]  # For the lines on stdin.


class Failed(Exception):
    pass


def call(name, *arguments):
    """Calls a driver function; passes integers of any size as C does."""
    code = getattr(cu, name)(*[ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments])
    if code:
        raise Failed(f"{name} returned {code}")


def asked(name, *arguments, kind=ctypes.c_uint64):
    """The value that a function writes to its first argument."""
    answer = kind()
    call(name, ctypes.byref(answer), *arguments)
    return answer.value


contexts = []


def use(device):
    """Makes the device's primary context current on this thread."""
    call("cuInit", 0)
    while len(contexts) <= device:
        contexts.append(asked("cuDevicePrimaryCtxRetain", len(contexts)))
    call("cuCtxSetCurrent", contexts[device])


class Memory:
    """A range of device memory and the bytes that it should hold."""

    def __init__(self, address, size):
        self.address, self.size = address, size
        self.bytes = bytearray(size)

    def write(self, offset=0, size=None):
        data = random.randbytes(size or self.size - offset)
        self.bytes[offset : offset + len(data)] = data
        call("cuMemcpyHtoD_v2", self.address + offset, data, len(data))

    def fill(self, value, offset=0, size=None):
        size = size or self.size - offset
        self.bytes[offset : offset + size] = bytes([value]) * size
        call("cuMemsetD8_v2", self.address + offset, value, size)

    def check(self, address=None):
        now = ctypes.create_string_buffer(self.size)
        call("cuMemcpyDtoH_v2", now, address or self.address, self.size)
        if now.raw != self.bytes:
            wrong = next(i for i in range(self.size) if now.raw[i] != self.bytes[i])
            raise Failed(f"byte {wrong} of {self.size} at {self.address:#x} is wrong")

    def free(self):
        call("cuMemFree_v2", self.address)
        everything.remove(self)


everything = []


def holds(address, size):
    """Fills new memory with a distinct pattern."""
    memory = Memory(address, size)
    memory.write()
    everything.append(memory)
    return memory


def allocate(size):
    return holds(asked("cuMemAlloc_v2", size), size)


def check():
    for memory in everything:
        memory.check()


class Properties(ctypes.Structure):
    _fields_ = (
        *[(name, ctypes.c_int) for name in ("kind", "handles", "location", "device")],
        ("meta", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


def create(size, device=0, shareable=False):
    """`cuMemCreate`"""
    return asked("cuMemCreate", size, ctypes.byref(Properties(1, int(shareable), 1, device)), 0)


def reserve(size):
    return asked("cuMemAddressReserve", size, 0, 0, 0)


def attach(address, size, handle, device=0, flags=3):
    """Maps physical memory and allows access to it."""
    call("cuMemMap", address, size, 0, handle, 0)
    call("cuMemSetAccess", address, size, (ctypes.c_int * 3)(1, device, flags), 1)
    return address


def properties(handle):
    what = Properties()
    call("cuMemGetAllocationPropertiesFromHandle", ctypes.byref(what), handle)
    return [getattr(what, name) for name in ("kind", "handles", "location", "device")]


def range_of(address):
    """`cuMemGetAddressRange`"""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address)
    return [base.value, size.value]


def attributes(address, *which):
    """`cuPointerGetAttribute` for each; checks that `cuPointerGetAttributes` returns the same."""
    one = []
    for number in which:
        value = ctypes.c_uint64()
        call("cuPointerGetAttribute", ctypes.byref(value), number, address)
        one.append(value.value)
    values = [ctypes.c_uint64() for _ in which]
    pointers = (ctypes.c_void_p * len(which))(*[ctypes.addressof(value) for value in values])
    call("cuPointerGetAttributes", len(which), (ctypes.c_int * len(which))(*which), pointers, address)
    if one != [value.value for value in values]:
        raise Failed(f"cuPointerGetAttribute says {one}, cuPointerGetAttributes {[value.value for value in values]}")
    return one


def free_bytes():
    """The result of `cuMemGetInfo`."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value


def begin_capture(stream):
    call("cuStreamBeginCapture_v2", stream, 0)


def end_capture(stream):
    """Ends a capture and instantiates the graph."""
    graph = ctypes.c_uint64()
    call("cuStreamEndCapture", stream, ctypes.byref(graph))
    return asked("cuGraphInstantiateWithFlags", graph, 0)


threads = {}


def later(name, what, device=0):
    """Runs a function in another thread."""
    outcome = []

    def work():
        try:
            use(device)
            outcome.append((what(), None))
        except Exception as error:
            outcome.append((None, error))

    thread = threading.Thread(target=work, daemon=True)
    threads[name] = thread, outcome
    thread.start()


def waits(name):
    """Returns True once memlab blocks the thread, and False if the thread ends."""
    thread, _ = threads[name]
    return gate.waits(thread)


def ended(name):
    """Waits until the thread ends; raises its error."""
    thread, outcome = threads[name]
    thread.join(PATIENCE_S)
    if outcome and outcome[0][1]:
        raise outcome[0][1]
    return bool(outcome)


def worker(stop, bad):
    """Changes and checks its own memory."""
    mine = [Memory(asked("cuMemAlloc_v2", size), size) for size in (PAGE, 3 * PAGE)]
    for memory in mine:
        memory.write()
    while not stop.is_set():
        memory = random.choice(mine)
        try:
            offset = random.randrange(memory.size - 4096)
            memory.write(offset, random.randrange(1, 4096))
            memory.fill(random.randrange(256), random.randrange(memory.size - 4096), 4096)
            memory.check()
        except Exception as error:
            bad.append(str(error))
            break
    for memory in mine:
        call("cuMemFree_v2", memory.address)


def churn(seed, rounds):
    """Allocates, checks, and frees any thread's memory. Returns the number of failed driver calls."""
    draw, failed = random.Random(seed), 0
    for _ in range(rounds):
        try:
            if draw.random() < 0.55:
                size = draw.choice([PAGE, PAGE + 512, 3 * PAGE, 5 * PAGE])
                memory = Memory(asked("cuMemAlloc_v2", size), size)
                memory.fill(draw.randrange(256))
                everything.append(memory)
            else:
                memory = everything.pop(draw.randrange(len(everything)))
                memory.check()
                call("cuMemFree_v2", memory.address)
        except (IndexError, ValueError):  # Another thread has freed it.
            continue
        except Failed as error:
            if "is wrong" in str(error):
                raise
            failed += 1
    return failed


def is_freed(memory):
    """Frees memory. Returns False, with the bytes unchanged, if the driver refuses."""
    try:
        memory.free()
    except Failed:
        memory.check()
        return False
    return True


class Other:
    """Another console process on the same GPUs."""

    def __init__(self, **environment):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "1"],  # A different seed gives different patterns.
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=pass_on,
        )

    def do(self, line):
        print(line, file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise Failed(answer["error"])
        return answer["value"]

    def end(self):
        self.process.stdin.close()
        return self.process.wait()


pass_on = []


def compiled(line):
    """Compiles an expression, or a statement with the value None."""
    try:
        return compile(line.strip(), "<told>", "eval")
    except SyntaxError:
        return compile(line, "<told>", "exec")


def main():
    for line in sys.stdin:
        try:
            answer = {"value": eval(compiled(line), globals())}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer, default=repr), flush=True)


if __name__ == "__main__":
    main()
