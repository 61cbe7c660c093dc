"""Keeps a part of the state of optimizers in host memory while no optimizer steps.

Embedded in libmemlab.so and run before fit.py, in the same namespace.

The state is copied to the host beside the first forward after a step. It leaves the GPU in the second half of that forward,
and returns during backward. A separate stream copies, and the program's stream waits for it with events. So each address
becomes free at the same point of the program in every run, however fast the copies are.

A tensor that is away has its copy on the host as its data. `optimizer.state` is then an object whose first use brings all
back, for `state_dict`, `deepcopy` and the program's own code. A tensor that something else holds stays on the GPU.
"""

import collections
import contextlib
import functools
import os
import sys
import threading
import types
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guards import _Harmless, _on_module_calls

_LEAST_STATE = 1 << 20  # Bytes of a tensor. Smaller ones come from the allocator's pool of small blocks.
_BATCH_BYTES = 64 << 20  # Bytes that leave or return together.
_ALIGNMENT = 512  # Of a tensor in host memory.
_RETURN_AHEAD = 1.25  # The state returns that much faster than gradients arrive.


class _ParameterRef(weakref.ReferenceType):
    """A weak reference to a parameter. PyTorch may exchange its content in place: see `_allow_swaps`."""


def _allow_swaps(torch):
    """Hides these references from `torch.utils.swap_tensors`, which refuses tensors with weak references."""
    if getattr(torch.utils, "weakref", None) is not weakref:
        return  # Already done, or a version of PyTorch that does not ask.
    shown = types.ModuleType("weakref")
    shown.__dict__.update(vars(weakref))

    def getweakrefs(thing):
        return [reference for reference in weakref.getweakrefs(thing) if type(reference).__name__ != "_ParameterRef"]

    shown.__dict__["getweakrefs"] = getweakrefs
    torch.utils.weakref = shown


class _Closure:
    """Stands for an object that an optimizer's step gets as its closure. An optimizer may use its other attributes too."""

    def __init__(self, original, call):
        self.original = original
        self.call = call

    def __call__(self, *arguments, **keywords):
        return self.call(*arguments, **keywords)

    def __getattr__(self, name):
        if name == "original":  # A copy, before it has its attributes.
            raise AttributeError(name)
        return getattr(self.original, name)


def _before_update(given, function):
    """Calls a function before an optimizer's step updates parameters: now, or after each call of the closure that computes
    the gradients. `given`: the arguments of the step. Returns those that replace them, or None."""
    arguments, keywords = given
    closure = keywords.get("closure", arguments[1] if len(arguments) > 1 else None)
    if not callable(closure):
        function()
        return None

    def computed(*arguments, **keywords):
        try:
            return closure(*arguments, **keywords)
        finally:
            function()

    is_function = isinstance(closure, (types.FunctionType, types.MethodType, functools.partial))
    computed = functools.wraps(closure)(computed) if is_function else _Closure(closure, computed)
    if "closure" in keywords:
        return arguments, {**keywords, "closure": computed}
    return (arguments[0], computed, *arguments[2:]), keywords


def _parameters(optimizer):
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _device_of(optimizer):
    """Returns the first GPU of an optimizer's parameters, or None."""
    return next((parameter.device for parameter in _parameters(optimizer) if parameter.is_cuda), None)


def _references(torch, state, parameter, key):
    """Returns the numbers of references to a tensor's dictionary, to the tensor and to its memory."""
    values = state[parameter]
    of_values = sys.getrefcount(values)
    tensor = values[key]
    return of_values, sys.getrefcount(tensor), torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def _references_to_state(optimizer):
    return sys.getrefcount(optimizer.__dict__["state"])


class _AwayState(collections.defaultdict):
    """Stands for `optimizer.state`. Its first use brings back what is away."""

    def __init__(self, original, bring_back):
        super().__init__(dict)
        self.original = original
        self.bring_back = bring_back


def _forwarded(name):
    def call(self, *arguments, **keywords):
        self.bring_back()
        return getattr(self.original, name)(*arguments, **keywords)

    return call


for _name in vars(dict) | vars(collections.defaultdict):
    if _name not in ("__new__", "__init__", "__getattribute__", "__doc__", "__class_getitem__", "default_factory"):
        setattr(_AwayState, _name, _forwarded(_name))
_AwayState.__reduce_ex__ = _forwarded("__reduce_ex__")  # type: ignore[method-assign]


class _HostMemory:
    """Pinned host memory of an exact size. PyTorch would round it up to a power of two."""

    def __init__(self, torch, size, warn):
        self.bytes = torch.empty(size, dtype=torch.uint8, device="cpu")
        self.cudart = torch.cuda.cudart()
        self.is_pinned = int(self.cudart.cudaHostRegister(self.bytes.data_ptr(), size, 0)) == 0
        if not self.is_pinned:
            warn("host memory for the optimizer's state cannot be pinned: copies are slow")

    def __del__(self):
        if self.is_pinned:
            with contextlib.suppress(Exception):  # The interpreter may be ending.
                self.cudart.cudaHostUnregister(self.bytes.data_ptr())


def _form(tensor):
    return tensor.dtype, tensor.shape, tensor.stride()


class _Slot:
    """A state tensor: its parameter, its name, and its place on the host."""

    def __init__(self, parameter, key, tensor):
        self.parameter = _ParameterRef(parameter)
        self.key = key
        self.form = _form(tensor)
        self.size = tensor.nbytes
        self.host: Any = None

    def tensor(self, state):
        return state[self.parameter()][self.key]


class _Batch:
    """Slots that leave and return together."""

    def __init__(self):
        self.slots: list = []
        self.size = 0
        self.event: Any = None  # After the last copy.


class _OptimizerState:
    """The state of one optimizer."""

    def __init__(self, host_state, optimizer):
        self.host_state = host_state
        self.torch = host_state.torch
        self.optimizer = weakref.ref(optimizer)
        self.slots: list = []
        self.batches: list = []  # In the order in which they leave; they return in the opposite order.
        self.size = 0  # Of all batches.
        self.away = 0  # Number of batches that are away: the first ones.
        self.away_size = 0
        self.original = None  # `optimizer.state`, while it is replaced.
        self.memory: Any = None
        self.lock = threading.RLock()
        self.streams: list = []  # The program's, on which this optimizer stepped; the last one at the end.
        self.in_step = False
        self.is_off = False
        self.may_leave = False  # True until the next forward begins. A program may wait for all work after a step.
        self.copied = 0  # Number of batches that were copied to the host, or are being copied.
        self.hooked: dict = {}  # id(parameter) -> the parameter, weakly. Their gradients are awaited.
        self.began = 0  # Calls of modules before the last step.
        self.forward_calls = 0  # Calls of modules between a step and the first gradient.
        self.arrived = 0  # Gradients in this backward.
        self.awaited = 0  # Gradients in the last complete one.
        self.in_backward = False
        self.backwards = 0  # Since the last step.
        self.backwards_of_a_step = 1

    def __del__(self):
        # Its memory must not be used for something else while it is copied.
        if self.memory is not None:
            with contextlib.suppress(Exception):  # The interpreter may be ending.
                self.host_state.wait_for_copies()

    # The program.

    def before_step(self):
        with self.lock:
            self.in_step = True
            self.bring_back()

    def after_step(self):
        self.in_step = False
        stream = self.host_state.current_stream()
        self.streams = [known for known in self.streams if known != stream] + [stream]
        self.in_backward = False
        self.awaited, self.arrived = self.arrived, 0
        self.backwards_of_a_step, self.backwards = max(self.backwards, 1), 0
        self.began = self.host_state.calls
        self.begin_to_leave()  # While the GPU is busy with the step.
        self.may_leave = True

    def module_called(self):
        """Called in forwards of training."""
        if self.in_step or self.is_off or self.host_state.is_capturing():
            return
        if self.in_backward:
            self.in_backward = False
            self.awaited, self.arrived = max(self.awaited, self.arrived), 0
            self.may_leave = True
        if self.may_leave:
            self.may_leave = False
            self.begin_to_leave()
        # Few at a call, because the GPU waits for the program meanwhile.
        for _ in range(-(-len(self.batches) // max(self.forward_calls, 1))):
            if self.original is not None and self.copied < len(self.batches):
                self.copy_out()
        progress = (self.host_state.calls - self.began) / max(self.forward_calls, 1)
        self.leave(min(max(2 * progress - 1, 0), 1))

    def gradient_arrived(self):
        if self.in_step or self.is_off or self.host_state.is_capturing():
            return
        if not self.in_backward:
            self.in_backward = True
            self.backwards += 1
            if self.backwards == 1:
                self.forward_calls = self.host_state.calls - self.began
        self.arrived += 1
        if self.backwards >= self.backwards_of_a_step:
            self.come_back(_RETURN_AHEAD * self.arrived / max(self.awaited, 1))

    # Leaving.

    def can_leave(self, value):
        return (
            type(value) is self.torch.Tensor
            and value.device == self.host_state.device
            and value.layout is self.torch.strided
            and not value.requires_grad
            and not getattr(value, "is_paged", False)
            and value.nbytes == value.untyped_storage().nbytes() >= self.host_state.least_bytes
        )

    def entries(self, optimizer):
        """Returns (parameter, key, tensor) of the tensors that leave: the largest ones."""
        entries = list(self.possible_entries(optimizer))
        left, chosen = self.host_state.wanted_bytes, []
        for index in sorted(range(len(entries)), key=lambda index: -entries[index][2].nbytes):
            if left <= 0:
                break
            chosen.append(index)
            left -= entries[index][2].nbytes
        return [entries[index] for index in sorted(chosen)]

    def possible_entries(self, optimizer):
        seen = set()
        for group in optimizer.param_groups:
            if group.get("capturable") or group.get("differentiable"):
                continue  # Graphs of CUDA or of autograd hold the addresses.
            for parameter in group["params"]:
                if parameter not in optimizer.state or type(optimizer.state[parameter]) is not dict:
                    continue
                for key in list(optimizer.state[parameter]):  # An iterator would hold the dictionary.
                    tensor = optimizer.state[parameter][key]
                    if not self.can_leave(tensor) or id(tensor) in seen:
                        continue
                    seen.add(id(tensor))
                    del tensor
                    if not self.is_held(optimizer.state, parameter, key):
                        yield parameter, key, optimizer.state[parameter][key]

    def is_current(self, optimizer, slot):
        """Returns True if the slot's tensor is still a part of the state and can leave."""
        parameter, state = slot.parameter(), optimizer.state
        return (
            parameter in state
            and type(state[parameter]) is dict
            and slot.key in state[parameter]
            and self.can_leave(slot.tensor(state))
            and slot.form == _form(slot.tensor(state))
            and not self.is_held(state, parameter, slot.key)
        )

    def is_held(self, state, parameter, key):
        """Returns True if something else holds the tensor, its memory or its dictionary."""
        held = _references(self.torch, state, parameter, key) != self.host_state.references
        if held:
            self.host_state.warn_once(f"the optimizer's {key} stays on the GPU: something else holds it")
        return held

    def begin_to_leave(self):
        """Replaces `optimizer.state`. The tensors are copied and leave later."""
        optimizer = self.optimizer()
        if self.is_off or self.original is not None or optimizer is None or not self.host_state.wanted_bytes:
            return
        if type(optimizer.state) is not collections.defaultdict or self.host_state.is_capturing():
            return
        if _references_to_state(optimizer) != self.host_state.references_to_state:
            self.host_state.warn_once("the optimizer's state stays on the GPU: something else holds it")
            return
        if not self.slots or not all(self.is_current(optimizer, slot) for slot in self.slots):
            self.lay_out(self.entries(optimizer))
        if not self.slots:
            return
        self.original = optimizer.state
        optimizer.state = _AwayState(self.original, self.bring_back)
        self.copied = 0

    def copy_out(self):
        """Copies the next batch to the host."""
        batch = self.batches[self.copied]
        with self.host_state.copying(self.streams) as event:
            for slot in batch.slots:
                self.host_state.copy(slot.host, slot.tensor(self.original))
            batch.event = event()
        self.copied += 1

    def lay_out(self, entries):
        self.slots = [_Slot(*entry) for entry in entries]
        self.batches, self.size = [], 0
        sizes = [-(-slot.size // _ALIGNMENT) * _ALIGNMENT for slot in self.slots]
        if self.memory is not None:
            self.host_state.wait_for_copies()
        if self.memory is None or sum(sizes) > self.memory.bytes.numel():
            self.memory = None  # Frees the old memory first.
            if not sizes:
                return
            self.memory = self.host_state.memory(sum(sizes))
        start = 0
        for slot, size in zip(self.slots, sizes, strict=True):
            dtype, shape, strides = slot.form
            slot.host = self.memory.bytes[start : start + slot.size].view(dtype).as_strided(shape, strides)
            start += size
            if not self.batches or self.batches[-1].size + slot.size > self.host_state.batch_bytes:
                self.batches.append(_Batch())
            self.batches[-1].slots.append(slot)
            self.batches[-1].size += slot.size
            self.size += slot.size
            self.await_gradient(slot.parameter())
        self.awaited = len(self.hooked)
        if self.host_state.rehearses:
            self.host_state.warn_once(f"{self.size} bytes of the optimizer's state leave")

    def await_gradient(self, parameter):
        known = self.hooked.get(id(parameter))
        if (known is not None and known() is parameter) or not (parameter.is_leaf and parameter.requires_grad):
            return
        own = weakref.ref(self)

        def arrived(_):
            state = own()
            if state is not None:
                state.host_state.harmless(state, state.gradient_arrived)

        parameter.register_post_accumulate_grad_hook(arrived)
        self.hooked[id(parameter)] = _ParameterRef(parameter)

    def leave(self, share):
        """Frees the memory of the state until a share of it is away."""
        while self.original is not None and self.away < len(self.batches):
            batch = self.batches[self.away]
            if self.away_size + batch.size > share * self.size:
                break
            while self.copied <= self.away:
                self.copy_out()
            with self.host_state.waiting():
                for stream in self.streams:
                    stream.wait_event(batch.event)
            for slot, tensor in [(slot, slot.tensor(self.original)) for slot in batch.slots]:
                tensor.data = slot.host
            self.away += 1
            self.away_size += batch.size

    # Returning.

    def come_back(self, share):
        """Begins to copy the state back until only the rest is away."""
        while self.away and self.away_size > (1 - share) * self.size:
            batch = self.batches[self.away - 1]
            self.copy_back(batch)
            self.away -= 1
            self.away_size -= batch.size

    def copy_back(self, batch):
        host_state = self.host_state
        new = host_state.on_device([slot.host for slot in batch.slots], self.streams[-1])
        with host_state.copying(self.streams) as event:
            for slot, tensor in zip(batch.slots, new, strict=True):
                host_state.copy(tensor, slot.host)
                slot.tensor(self.original).data = tensor
                self.host_state.tag(slot.parameter(), tensor, slot.key)
            batch.event = event()

    def bring_back(self):
        """Brings everything back."""
        with self.lock, self.torch._C._DisableTorchDispatch():
            if self.original is None:
                return
            self.come_back(1)
            current = self.host_state.current_stream()
            with self.host_state.waiting():
                for stream in [*self.streams, current]:
                    for batch in self.batches[: self.copied]:
                        stream.wait_event(batch.event)
            original, self.original = self.original, None
            optimizer = self.optimizer()
            if optimizer is not None and type(optimizer.state) is _AwayState:
                optimizer.state = original


class _HostState:
    """Keeps the state of optimizers on the host between steps.

    `wanted_bytes`: how much of each one's state leaves; tensors leave as a whole."""

    def __init__(
        self, warn, torch, tag, wanted_bytes=0, rehearses=False, least_bytes=_LEAST_STATE, batch_bytes=_BATCH_BYTES
    ):
        self.warn = warn
        self.rehearses = rehearses  # On a simulated card, where values do not matter.
        self.waiting: Any = contextlib.nullcontext  # Returns a context in which the time is measured.
        self.torch = torch
        self.tag = tag
        self.wanted_bytes = wanted_bytes
        self.least_bytes = least_bytes
        self.batch_bytes = batch_bytes
        self.states: Any = weakref.WeakKeyDictionary()
        self.hook: Any = None  # On calls of modules, while state leaves.
        self.calls = 0  # Calls of modules in forwards of training.
        self.warned: set = set()
        self.device: Any = None
        self.stream: Any = None
        example = types.SimpleNamespace(state={0: {"it": torch.zeros(1, device="cpu")}})
        example.state[0]["it"].untyped_storage()
        self.references = _references(torch, example.state, 0, "it")
        self.references_to_state = _references_to_state(example)
        self.pid = os.getpid()

    def attach(self, optimizers):
        optimizers.register_optimizer_step_pre_hook(self.before_step)
        optimizers.register_optimizer_step_post_hook(self.after_step)
        if self.wanted_bytes:
            self.move(self.wanted_bytes)

    def move(self, wanted_bytes):
        """Makes this much of each optimizer's state leave, after its next step."""
        self.wanted_bytes = wanted_bytes
        _allow_swaps(self.torch)
        for state in self.states.values():
            state.slots = []
        if self.hook is None:
            (self.hook,) = _on_module_calls(self.torch, self.module_called)

    def before_step(self, optimizer, *given):
        state = self.states.get(optimizer)
        return None if state is None else _before_update(given, state.before_step)

    def after_step(self, optimizer, *_):
        state = self.states.get(optimizer)
        if state is None:
            state = self.states[optimizer] = _OptimizerState(self, optimizer)
        self.harmless(state, functools.partial(self.stepped, state, optimizer))

    def module_called(self, *_):
        if self.torch.compiler.is_compiling():
            return  # Dynamo traces this line, and no break of the graph is needed.
        if not self.torch.is_grad_enabled() or self.torch._C._current_graph_task_id() != -1:  # -1: not in backward.
            return
        if os.getpid() != self.pid:
            return  # A forked worker has no GPU.
        self.calls += 1
        for state in list(self.states.values()):
            self.harmless(state, state.module_called)

    for _hook in (before_step, after_step):
        _hook._torchdynamo_disable = True

    def stepped(self, state, optimizer):
        self.find_device(optimizer)
        if self.device is not None:
            state.after_step()

    def harmless(self, state, function):
        def stop(error):
            state.is_off = True
            self.warn_once(f"the optimizer's state stays on the GPU ({error})")

        # The program's modes, such as that of `memlab.offload_activations`, do not see the copies.
        with _Harmless(stop), state.lock, self.torch._C._DisableTorchDispatch():
            function()

    def warn_once(self, text):
        if text not in self.warned:
            self.warned.add(text)
            self.warn(text)

    # The device.

    def find_device(self, optimizer):
        cuda = self.torch.cuda
        if self.device is None:
            self.device = _device_of(optimizer)
            self.stream = self.device and cuda.Stream(self.device)

    def current_stream(self):
        return self.torch.cuda.current_stream(self.device)

    def is_capturing(self):
        return self.torch.cuda.is_current_stream_capturing()

    def memory(self, size):
        return _HostMemory(self.torch, size, self.warn_once)

    def on_device(self, hosts, stream):
        """Returns new memory on the device for copies of these tensors."""
        with self.torch.cuda.stream(stream):
            return [self.torch.empty_like(host, device=self.device) for host in hosts]

    @contextlib.contextmanager
    def copying(self, streams):
        """Copies run beside the program's work, after what it has queued on these streams. Yields a function that marks
        their end."""
        for stream in streams:
            self.stream.wait_stream(stream)
        with self.torch.cuda.stream(self.stream), self.torch.no_grad():
            yield self.stream.record_event

    def copy(self, to, source):
        if not self.rehearses:
            to.copy_(source, non_blocking=True)

    def wait_for_copies(self):
        self.stream.synchronize()
