"""Pages the modules that `memlab run --fit` chose, at the moment when the program moves them to the GPU.

Python runs this file when it imports PyTorch (startup.py). The agent in libmemlab.so starts too late: its first chance is
the first call of CUDA, in the middle of the first move. `MEMLAB_FIT_PAGE` has the decision as JSON:

    {"reserved_bytes": 8589934592, "modules": [{"number": 0, "class": "LlamaForCausalLM", "budget_bytes": 6442450944}]}

Modules are numbered in the order in which they first move to the GPU. PyTorch's allocator returns cached memory instead of
reserving more than `reserved_bytes`. With `MEMLAB_FIT_MOVED`, a file, memlab runs the program on a simulated card, and gets
a line of JSON for each module that moves, for each that cannot be paged, and for the number of its calls.
"""

import contextlib
import functools
import importlib
import json
import os
import sys
import threading
import weakref

# Smaller modules are always moved as a whole.
LEAST_BYTES = 1 << 20
# These see where the parameters of a paged module are. Others see the device that computes with them.
INSIDERS = ("torch", "memlab")
CLASSES = {"transformers.modeling_utils": "PreTrainedModel", "diffusers.models.modeling_utils": "ModelMixin"}
SEVERAL = ("auto", "balanced", "balanced_low_0", "sequential")


class WeakTable:
    """Values by object, also for objects that compare by value. Does not keep the objects alive."""

    def __init__(self):
        self.values = {}

    def get(self, thing):
        reference, value = self.values.get(id(thing), (None, None))
        return value if reference is not None and reference() is thing else None

    def put(self, thing, value):
        self.values[id(thing)] = weakref.ref(thing), value

    def drop(self, thing):
        self.values.pop(id(thing), None)


class Counting:
    """A hook that counts the calls of a module."""

    def __init__(self, calls, number):
        self.calls = calls
        self.number = number

    def __call__(self, *_):
        self.calls[self.number] += 1

    def __reduce__(self):
        # In a module that the program saves or copies, a hook that returns the arguments, and needs no code of memlab.
        return getattr, ({}, "get")


class Paging:
    def __init__(self, torch, decision, moved):
        self.torch = torch
        self.reserved = decision.get("reserved_bytes")
        self.chosen = {part["number"]: part for part in decision["modules"]}
        self.moved = moved  # The file for reports, or None.
        self.local = threading.local()
        self.numbers = WeakTable()  # By module.
        self.count = 0  # Of numbers.
        self.calls = {}  # By number.
        self.counting = []  # Hooks that count them.
        self.devices = WeakTable()  # Of modules that are paged, and of their parameters.
        self.move = torch.nn.Module.to  # The original.
        self.containers = (torch.nn.ModuleList, torch.nn.ModuleDict)  # They have no forward.

    # The program's calls.

    def patch(self):
        module = self.torch.nn.Module
        dtypes = {name: getattr(self.torch, name) for name in ("half", "float", "double", "bfloat16")}

        def cuda(device=None):
            return self.torch.device(*(("cuda", device) if isinstance(device, int) else (device or "cuda",))), None

        self.wrap(module, "to", lambda *given, **named: self.torch._C._nn._parse_to(*given, **named)[:2])
        self.wrap(module, "cuda", cuda)
        self.wrap(module, "cpu", lambda: (self.torch.device("cpu"), None))
        for name, dtype in dtypes.items():
            self.wrap(module, name, lambda dtype=dtype: (None, dtype))
        if self.chosen:
            self.show_devices()
        if self.moved is not None:
            self.stop_counting_in_trainings()

    def wrap(self, kind, name, parse):
        """Wraps a method that moves or casts. `parse` returns the device and the type of its arguments."""
        original = getattr(kind, name)

        @functools.wraps(original)
        def wrapped(module, *arguments, **named):
            call = functools.partial(original, module, *arguments, **named)
            try:
                device, dtype = parse(*arguments, **named)
            except (TypeError, RuntimeError):
                return call()  # It raises, too.
            with self.outermost() as is_outermost:
                return self.changed(module, device, dtype, call) if is_outermost else call()

        setattr(kind, name, wrapped)

    @contextlib.contextmanager
    def outermost(self):
        """Yields True in the outermost call of a thread."""
        if getattr(self.local, "is_inside", False):
            yield False
            return
        self.local.is_inside = True
        try:
            yield True
        finally:
            self.local.is_inside = False

    def changed(self, module, device, dtype, call):
        """Moves or casts a module. `call` does it without memlab."""
        kind = device.type if device is not None else None
        if kind == "cuda" and device.index is None:
            device = self.torch.device("cuda", self.torch.cuda.current_device())
        if self.devices.get(module) is not None and kind in ("cuda", None) and not self.casts(module, dtype):
            return module  # It is paged, or a part of a paged module.
        paged = [part for part in module.modules() if self.numbers.get(part) is not None and self.devices.get(part)]
        if not paged:
            return self.arrived(module, device, dtype, call) if kind == "cuda" else call()
        if kind not in ("cuda", None):
            for part in paged:
                self.release(part)
            return call()
        for part in paged:
            if self.casts(part, dtype):
                on = self.devices.get(part)
                self.release(part)
                self.move(part, dtype=dtype)
                self.page(part, on)
        # The rest of the module moves.
        guards = [(part, vars(part)["_apply"]) for part in paged]
        for part in paged:
            vars(part)["_apply"] = lambda *_, part=part, **__: part
        try:
            return call()
        finally:
            for part, guard in guards:
                vars(part)["_apply"] = guard

    def casts(self, module, dtype):
        return dtype is not None and any(self.is_cast(tensor, dtype) for tensor in module.parameters())

    def is_cast(self, tensor, dtype):
        return (tensor.is_floating_point() or tensor.is_complex()) and tensor.dtype != dtype

    def arrived(self, module, device, dtype, call):
        """Pages a module that the program moves to the GPU, or lets it move."""
        if type(module) in self.containers:
            for part in module.children():
                self.changed(part, device, dtype, functools.partial(self.move, part, device, dtype))
            return module
        sizes = self.sizes(module, dtype)
        if sum(sizes) < LEAST_BYTES:
            return call()
        number = self.number_of(module)
        self.report_move(module, number, sizes)
        if not self.is_chosen(number, type(module)):
            return call()
        if dtype is not None:
            self.move(module, dtype=dtype)
        return module if self.page(module, device) else call()

    def sizes(self, module, dtype):
        """Returns the bytes of each tensor that is not on a GPU."""
        tensors = [*module.parameters(), *module.buffers()]
        sizes = []
        for tensor in tensors:
            if not tensor.is_cuda and not tensor.is_meta:
                size = dtype.itemsize if dtype is not None and self.is_cast(tensor, dtype) else tensor.element_size()
                sizes.append(tensor.numel() * size)
        return sizes

    def number_of(self, module):
        number = self.numbers.get(module)
        if number is None:
            number, self.count = self.count, self.count + 1
            self.numbers.put(module, number)
        return number

    def is_chosen(self, number, kind):
        return self.chosen.get(number, {}).get("class") == kind.__name__

    def patch_loading(self, kind):
        """Wraps `from_pretrained`, which puts weights on the GPU without a move."""
        original = kind.from_pretrained.__func__

        @functools.wraps(original)
        def from_pretrained(cls, *arguments, **named):
            device = self.mapped_to(named.get("device_map"))
            with self.outermost() as is_outermost:
                if not is_outermost or device is None:
                    return original(cls, *arguments, **named)
                is_chosen = self.is_chosen(self.count, cls)
                if is_chosen:
                    named = {**named, "device_map": None}
                found = original(cls, *arguments, **named)
                model = found[0] if isinstance(found, tuple) else found
                number = self.number_of(model)
                self.report_move(model, number, [t.nbytes for t in (*model.parameters(), *model.buffers())])
                if is_chosen:
                    if not self.page(model, device):
                        self.move(model, device)
                    model.hf_device_map = {"": device.index}
                return found

        kind.from_pretrained = classmethod(from_pretrained)

    def mapped_to(self, device_map):
        """Returns the only GPU of a `device_map`; None: it has another device, or several."""
        places = set(device_map.values()) if isinstance(device_map, dict) else {device_map}
        if len(places) != 1 or places == {None}:
            return None
        (place,) = places
        if isinstance(place, str) and place in SEVERAL:
            place = "cuda"
        with contextlib.suppress(RuntimeError, TypeError):
            device = self.torch.device("cuda", place) if isinstance(place, int) else self.torch.device(place)
            if device.type == "cuda" and self.torch.cuda.is_available():
                return self.torch.device("cuda", device.index or 0)
        return None

    # Paging.

    def page(self, module, device):
        """Pages a module. Returns False if that is impossible and only tried."""
        part = self.chosen[self.numbers.get(module)]
        try:
            memlab = importlib.import_module("memlab")
            memlab.page(module, device, budget=part["budget_bytes"], on_change="upload")
        except (ImportError, RuntimeError, TypeError, ValueError) as error:
            if self.moved is None:
                raise
            is_missing = isinstance(error, ImportError)
            why = f"the program's Python has no package memlab ({error}): pip install memlab" if is_missing else str(error)
            self.report(number=part["number"], refused=why)
            return False
        if self.reserved:
            _, total = self.torch.cuda.mem_get_info(device)
            self.torch.cuda.set_per_process_memory_fraction(min(1.0, self.reserved / total), device)
        for thing in (*module.modules(), *module.parameters()):
            self.devices.put(thing, device)
        return True

    def release(self, module):
        importlib.import_module("memlab").unpage(module)
        for thing in (*module.modules(), *module.parameters()):
            self.devices.drop(thing)

    def show_devices(self):
        """Shows the program the GPU as device of paged parameters: it creates its inputs there."""
        base, devices = self.torch._C.TensorBase, self.devices

        def shown(parameter, frame):
            is_inside = frame.f_globals.get("__name__", "").partition(".")[0] in INSIDERS
            return None if is_inside else devices.get(parameter)

        def device(parameter):
            actual = base.device.__get__(parameter)
            return actual if actual.type == "cuda" else shown(parameter, sys._getframe(1)) or actual

        def is_cuda(parameter):
            return base.is_cuda.__get__(parameter) or shown(parameter, sys._getframe(1)) is not None

        self.torch.nn.Parameter.device = property(device)
        self.torch.nn.Parameter.is_cuda = property(is_cuda)

    # Reports of a run on a simulated card.

    def report_move(self, module, number, sizes):
        if self.moved is None or number in self.calls:
            return
        self.calls[number] = 0
        self.counting.append(module.register_forward_pre_hook(Counting(self.calls, number)))
        self.report(number=number, kind=type(module).__name__, nbytes=sum(sizes), largest_bytes=max(sizes))

    def stop_counting_in_trainings(self):
        """Removes the hooks when the program makes an optimizer: memlab recomputes no module with hooks inside."""
        optimizer = importlib.import_module("torch.optim.optimizer").Optimizer
        made = optimizer.__init__

        @functools.wraps(made)
        def init(*arguments, **named):
            while self.counting:
                self.counting.pop().remove()
            return made(*arguments, **named)

        optimizer.__init__ = init

    def report(self, **line):
        with open(self.moved, "a") as file:
            file.write(json.dumps(line) + "\n")

    def finish(self):
        if self.moved is not None:
            for number, calls in self.calls.items():
                self.report(number=number, calls=calls)


started = []


def start(torch):
    """Patches PyTorch. Returns the functions to call when modules are imported."""
    text = os.environ.get("MEMLAB_FIT_PAGE")
    if not text:
        return {}
    paging = Paging(torch, json.loads(text), os.environ.get("MEMLAB_FIT_MOVED"))
    paging.patch()
    started.append(paging)
    return {
        name: functools.partial(lambda kind, module: paging.patch_loading(getattr(module, kind)), kind)
        for name, kind in CLASSES.items()
    }


def finish():
    """Called before a recorded program ends."""
    for paging in started:
        paging.finish()
