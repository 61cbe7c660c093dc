"""Computes the activations of modules once more in backward, with the results of the first time or an error.

Embedded in libmemlab.so and run before fit.py, in the same namespace.
"""

import array
import copy
import ctypes
import functools
import inspect
import operator
import pickle
import random
import sys
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fit_costs import _AGAIN
    from fit_snapshot import _Snapshot
    from guards import _dictionary

# Larger tensors that are plain attributes are watched until their module has written them once.
_COPIED_BYTES = 64 << 20
# Buffers up to this are always copied: some operations write without raising a version, in some forwards only.
_SMALL_BYTES = 64 << 10
# Modules with a global generator, and their functions that return and set its state.
_DRAWN = {"random": ("getstate", "setstate"), "numpy.random": ("get_state", "set_state")}
# 624 numbers, and the position of the next one.
_MT19937_BYTES = 625 * 4


class _Recomputed:
    """Stands for the `forward` of a module: the same result, but backward computes the activations once more.

    It holds the module weakly. A cycle would keep the memory of a deleted model until the next garbage collection.
    """

    def __init__(self, fit, module, name, function):
        self.fit = fit
        self.module = weakref.ref(module)
        self.name = name
        self.function = function  # The module's own forward; None: that of its class, which the program may exchange.
        self.checked: set = set()  # Modes of the parts in forwards that have shown what forward changes:
        self.written: set = set()  # Buffers and tensors in attributes: (name of a part, name).
        self.draws: set = set()  # Of `_DRAWN`, the generators from which forward draws.
        self.is_left_out = False

    def __getattr__(self, name):
        # For code that treats `forward` as a method: __code__, __globals__, __func__.
        return getattr(self.__wrapped__, name)

    def bound(self, module):
        if self.function is not None:
            return self.function
        forward = next(kind.__dict__["forward"] for kind in type(module).__mro__ if "forward" in kind.__dict__)
        return forward.__get__(module, type(module))

    @property
    def __self__(self):
        return self.module()

    @property
    def __wrapped__(self):
        return self.bound(self.module())

    @property
    def __signature__(self):
        return inspect.signature(self.__wrapped__)

    def __reduce__(self):
        if self.function is not None:
            return operator.itemgetter(0), ((self.function,),)  # Pickles the function alone.
        return getattr, (self.module(), "forward")  # As a method is pickled.

    def __deepcopy__(self, memo):
        copied = memo.get(id(self.module()))
        if copied is None:
            return self.__wrapped__
        return _Recomputed(self.fit, copied, self.name, copy.deepcopy(self.function, memo))

    def is_copied_into(self, thing):
        """Returns True for another module that has it: `copy.copy`, or a library, has copied the attributes."""
        return thing is not self.module() and _dictionary(thing).get("forward") is self

    def take_out(self, module):
        """Gives a module its own forward again."""
        if self.function is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = self.function

    def __call__(self, *arguments, **keywords):
        if not self.fit.torch.compiler.is_compiling():
            caller = sys._getframe(1).f_locals.get("self")  # PyTorch's `_call_impl` has the module that is called.
            if self.is_copied_into(caller):
                self.take_out(caller)
                return self.bound(caller)(*arguments, **keywords)
        module = self.module()
        forward = self.bound(module)
        if self.is_left_out or not self.fit.may_recompute():
            return forward(*arguments, **keywords)
        return self.run(module, forward, arguments, keywords)

    def run(self, module, forward, arguments, keywords):
        tensors: list = []
        generators: list = []
        try:
            tree = self.fit.copied((arguments, keywords), tensors, generators)
        except _Unknown as unknown:
            self.fit.leave_out(self, f"it is called with {unknown}, which its forward may change")
            return forward(*arguments, **keywords)
        parts = self.fit.parts_of(module)
        if reason := self.fit.why_not(parts):
            self.fit.leave_out(self, reason)
            return forward(*arguments, **keywords)
        # PyTorch would check and restore less, and name no module.
        first = functools.partial(forward, *arguments, **keywords)
        call = _Call(self, parts, first, forward, (tree, tensors, generators))
        return self.fit.checkpoint(call, use_reentrant=False, preserve_rng_state=False)


def _name_mismatches(checkpointing):
    """Makes PyTorch name the module if a recomputation needs other tensors than the forward. `checkpointing`: the module
    `torch.utils.checkpoint`."""
    frames = getattr(checkpointing, "_CheckpointFrame", None)
    check = getattr(frames, "check_recomputed_tensors_match", None)
    if check is None or hasattr(check, "__wrapped__"):
        return

    @functools.wraps(check)
    def named(frame, gid):
        try:
            return check(frame, gid)
        except checkpointing.CheckpointError as error:
            cells = (cell.cell_contents for cell in frame.recompute_fn.__closure__ or ())
            call = next((found for found in cells if type(found).__name__ == "_Call"), None)
            if call is None:
                raise
            call.refuse("its forward did something else when it ran again", error)

    frames.check_recomputed_tensors_match = named


def _show_plain_forwards(torch, handles):
    """Makes compilers of source code see the forwards of the program, without the hooks that have these handles."""
    modules = torch.nn.Module
    hooks = torch.nn.modules.module._global_forward_pre_hooks

    def wrap(place, name):
        original = getattr(place, name)

        @functools.wraps(original)
        def shown(*arguments, **keywords):
            things = (*arguments[:1], *keywords.values())
            parts = next((thing.modules() for thing in things if isinstance(thing, modules)), ())
            hidden = [
                (part, part.__dict__["forward"]) for part in parts if type(part.__dict__.get("forward")) is _Recomputed
            ]
            for part, recomputed in hidden:
                recomputed.take_out(part)
            removed = {handle.id: hooks.pop(handle.id) for handle in handles if handle.id in hooks}
            try:
                return original(*arguments, **keywords)
            finally:
                hooks.update(removed)
                for part, recomputed in hidden:
                    part.__dict__["forward"] = recomputed

        setattr(place, name, shown)

    wrap(torch.jit._recursive, "create_script_module")
    if hasattr(torch, "export"):
        wrap(torch.export, "export")


class _Scripted:
    """Counts calls of TorchScript's functions in each thread. The second call of one saves other tensors than the first."""

    def __init__(self, torch):
        self.of_thread = threading.local()
        kind = torch.jit.ScriptFunction
        original = kind.__call__

        @functools.wraps(original)
        def call(function, *arguments, **keywords):
            self.of_thread.calls = self.calls() + 1
            return original(function, *arguments, **keywords)

        kind.__call__ = call

    def calls(self):
        return getattr(self.of_thread, "calls", 0)


class _Unknown(Exception):
    """An argument of a type whose content may change."""


class _Call:
    """A forward of a module and its recomputation, which finds everything as the forward did."""

    def __init__(self, recomputed, parts, first, forward, copied):
        """`parts`: their names and modules; `first`: the forward with its arguments; `copied`: a copy of these, its tensors,
        and its generators."""
        self.recomputed = recomputed
        self.fit = recomputed.fit
        self.first = first
        self.forward = forward
        self.tree, self.tensors, generators = copied
        self.parts = parts
        self.modes = tuple(part.training for _, part in self.parts)  # What forward writes may depend on them.
        self.is_checked = self.modes in recomputed.checked
        parameters = [
            (f"parameter {_joined(part_name, name)}", parameter)
            for part_name, part in self.parts
            for name, parameter in part._parameters.items()
            if parameter is not None
        ]
        self.needed = [(parameter, parameter.requires_grad) for _, parameter in parameters if parameter.is_leaf]
        watched = [*((f"argument {index}", tensor) for index, tensor in enumerate(self.tensors)), *parameters]
        self.has_addresses = not self.fit.is_distributed()
        self.watched = [self.mark(what, tensor) for what, tensor in watched]
        self.generators = [(generator, generator.get_state()) for generator in generators]
        self.devices = {tensor.device for _, tensor in watched if tensor.device.type == "cuda"}
        self.random = self.random_states(recomputed.draws if self.is_checked else _DRAWN)
        self.refused = None  # The reason why it cannot run again.
        self.before = self.snapshot()
        self.kept = list(self.values_before())  # (dictionary, name, key of it for the module, tensor, its value before)

    def snapshot(self):
        return _Snapshot(self.fit.torch, self.parts, self.fit.ignored)

    def mark(self, what, tensor):
        return what, weakref.ref(tensor), self.state(tensor)

    def state(self, tensor):
        """Returns what changes when a tensor is written, or gets other data. Sharding over processes changes the address
        too."""
        torch = self.fit.torch
        kind = type(tensor)
        has_address = self.has_addresses and (kind is torch.nn.Parameter or kind is torch.Tensor)
        address = tensor.data_ptr() if has_address and tensor.layout is torch.strided else 0
        return (0 if tensor.is_inference() else tensor._version), address

    def __call__(self):
        if self.first is None:
            return self.again()
        first, self.first = self.first, None
        sizes = self.norms()
        scripted = self.fit.scripted.calls()
        before = _drawn_states(in_full=not self.is_checked)
        result = first()
        self.find_drawn(_drawn(before, in_full=not self.is_checked), before)
        if self.fit.scripted.calls() != scripted:
            self.never_again("its forward calls a function that is compiled by TorchScript")
        if not self.is_checked:
            self.find_written()
            if sizes != self.norms():
                self.refused = "its forward changes weights through `data`"
        return result

    def never_again(self, why):
        self.refused = why
        self.recomputed.is_left_out = True
        self.fit.leave_out(self.recomputed, why)

    def norms(self):
        """Returns norms of the weights while it is unknown what forward changes, as text, in which NaN is NaN."""
        if self.is_checked or self.fit.rehearses or self.fit.is_distributed():
            return ""
        torch = self.fit.torch
        weights = [weight.detach() for weight, _ in self.needed if weight.is_floating_point() and weight.itemsize > 1]
        weights = [weight for weight in weights if type(weight) is torch.Tensor and not weight.is_meta]
        return str([norm.item() for norm in torch._foreach_norm(weights)] if weights else "")

    def find_drawn(self, names, before):
        """Notes from which generators the forward drew. Draws of other threads look the same."""
        recomputed, is_alone = self.recomputed, threading.active_count() == 1
        late = names - recomputed.draws if self.is_checked else set()
        if "random" in late:
            self.random["random"] = random.setstate, before["random"]
        if "numpy.random" in late and is_alone:
            self.refused = "its forward draws from numpy.random only sometimes"
        elif "numpy.random" in late:
            self.random["numpy.random"] = _numpy_state(before["numpy.random"])
        if not self.is_checked:
            recomputed.draws |= names
            for name in _DRAWN.keys() - names:
                self.random.pop(name, None)
        if not is_alone and (late or (names and not self.is_checked)):
            recomputed.is_left_out = True
            self.fit.leave_out(recomputed, f"its forward draws from {min(late or names)}, or another thread does")

    def random_states(self, names):
        """Returns functions that set the state of a generator, and its state now, by the name of the generator."""
        torch = self.fit.torch
        states = {"torch": (torch.set_rng_state, torch.get_rng_state())}
        for device in self.devices:
            states[device] = functools.partial(torch.cuda.set_rng_state, device=device), torch.cuda.get_rng_state(device)
        for name in names:
            module = sys.modules.get(name)
            if module is not None:
                get, put = _DRAWN[name]
                states[name] = getattr(module, put), getattr(module, get)()
        return states

    @staticmethod
    def set_random_states(states):
        for put, state in states.values():
            put(state)

    @staticmethod
    def set_needed(needed):
        for parameter, is_needed in needed:
            if parameter.requires_grad is not is_needed:
                parameter.requires_grad_(is_needed)

    def values_before(self):
        """Copies what the module's forward writes, or all small tensors until that is known. Watches the others."""
        for part_name, part in self.parts:
            # Kernels of normalizations write the statistics without raising their version.
            has_statistics = "track_running_stats" in part.__dict__
            for name, buffer in part._buffers.items():
                if buffer is None:
                    continue
                key = (part_name, name)
                if has_statistics or self.is_small(buffer) or self.is_copied(buffer, key):
                    yield part._buffers, name, key, buffer, buffer.detach().clone()
                else:
                    self.watched.append(self.mark(f"tensor {_joined(part_name, name)}", buffer))
        for dictionary, part_name, name, tensor in self.before.tensors:
            key = (part_name, name)
            if dictionary is not None and self.is_copied(tensor, key) and tensor.nbytes <= _COPIED_BYTES:
                yield dictionary, name, key, tensor, tensor.detach().clone()
            elif not tensor.is_meta:
                self.watched.append(self.mark(f"tensor {_joined(part_name, name)}", tensor))

    def is_copied(self, tensor, key):
        return key in self.recomputed.written if self.is_checked else self.is_dense(tensor)

    def is_small(self, tensor):
        return self.is_dense(tensor) and tensor.nbytes <= _SMALL_BYTES

    def is_dense(self, tensor):
        return tensor.layout is self.fit.torch.strided and not tensor.is_meta and not tensor.is_nested

    def find_written(self):
        """Compares the module's tensors with their values before the forward: some operations write without raising a
        version. Those that forward exchanges for others are not written."""
        written = self.recomputed.written
        self.recomputed.checked.add(self.modes)
        holders: dict = {}  # By storage: the tensors in it.
        for _, _, _, tensor, _ in self.kept:
            holders.setdefault(tensor.untyped_storage()._cdata, set()).add(id(tensor))
        for _, name, key, tensor, before in self.kept:
            if self.is_equal(tensor, before):
                continue
            written.add(key)
            if len(holders[tensor.untyped_storage()._cdata]) > 1:
                self.never_again(f"its forward writes {name}, which shares memory with another tensor")
        self.kept = [entry for entry in self.kept if entry[2] in written or self.is_small(entry[3])]

    def is_equal(self, tensor, before):
        try:
            return tensor.shape == before.shape and self.fit.torch.equal(tensor, before)
        except (RuntimeError, NotImplementedError):  # There is no comparison of this type.
            return False

    def again(self):
        for what, reference, state in self.watched:
            tensor = reference()
            if tensor is not None and self.state(tensor) != state:
                self.refuse(f"{what} was changed after its forward began")
        why = self.refused or self.fit.why_not(self.parts)
        if why:
            self.refuse(why)
        arguments, keywords = self.fit.filled(self.tree, self.tensors)
        now = self.snapshot()
        states = self.random_states(self.random.keys() & _DRAWN.keys())
        generators = [(generator, generator.get_state()) for generator, _ in self.generators]
        needed = [(parameter, parameter.requires_grad) for parameter, _ in self.needed]
        try:
            self.before.put_back()
            self.set_random_states(self.random)
            self.set_needed(self.needed)
            clones: dict = {}  # By tensor: parts may share it.
            for dictionary, name, _, tensor, before in self.kept:
                if id(tensor) not in clones:
                    clones[id(tensor)] = before.clone()
                dictionary[name] = clones[id(tensor)]
            for generator, state in self.generators:
                generator.set_state(state)
            with self.fit.part(_AGAIN):
                return self.forward(*arguments, **keywords)
        finally:
            now.put_back()
            self.set_random_states(states)
            self.set_needed(needed)
            for generator, state in generators:
                generator.set_state(state)

    def refuse(self, why, cause=None):
        name = self.recomputed.name
        raise RuntimeError(
            f"memlab --fit: the activations of {name} cannot be computed again: {why}. Run with --fit-without {name}"
        ) from cause


def _joined(part_name, name):
    return f"{part_name}.{name}" if part_name else name


def _drawn_states(in_full):
    """Returns states of global generators to compare. `in_full`: with a second normal number, which numpy holds back."""
    numpy = sys.modules.get("numpy.random") if in_full else None
    return {
        "random": random.getstate(),
        "numpy.random": _numpy_bytes() if numpy is None else pickle.dumps(numpy.get_state(legacy=False)),
    }


def _drawn(before, in_full):
    """Returns the names of the generators whose states differ from those before."""
    now = _drawn_states(in_full)
    return {name for name in _DRAWN if now[name] != before[name]}


def _numpy_bytes():
    """Returns the state of numpy's global generator. Asking numpy for it takes 60 µs."""
    numpy = sys.modules.get("numpy.random")
    if numpy is None:
        return b""
    generator = numpy.mtrand._rand._bit_generator
    if type(generator).__name__ != "MT19937":
        return generator.state
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)


def _numpy_state(before):
    """Returns what sets numpy's global generator to a state of `_numpy_bytes`, and this state. It has no second normal
    number."""
    numpy = sys.modules["numpy.random"]
    if not isinstance(before, bytes):
        return functools.partial(setattr, numpy.mtrand._rand._bit_generator, "state"), before
    *key, position = array.array("I", before)
    return numpy.set_state, ("MT19937", key, position)


class _Place:
    """Place of a tensor in arguments."""

    def __init__(self, index):
        self.index = index


class _Cache:
    """A copy of a cache of keys and values of Transformers, from before forward extends it."""

    # Their update makes new tensors.
    GROWING = ("DynamicCache", "EncoderDecoderCache", "DynamicLayer", "DynamicSlidingWindowLayer")

    def __init__(self, cache):
        self.before = self.copied(cache)

    @classmethod
    def is_growing(cls, value):
        """Returns True if the object and all that it holds are of known classes."""
        return type(value).__module__ == "transformers.cache_utils" and (
            type(value).__name__ in cls.GROWING and all(map(cls.is_growing, cls.held_by(value)))
        )

    @classmethod
    def held_by(cls, value):
        for attribute in vars(value).values():
            for item in attribute if type(attribute) is list else (attribute,):
                if type(item).__module__ == "transformers.cache_utils":
                    yield item

    @classmethod
    def copied(cls, value):
        def inner(item):
            return cls.copied(item) if type(item).__module__ == "transformers.cache_utils" else item

        copied = object.__new__(type(value))
        for name, attribute in vars(value).items():
            if type(attribute) is list:
                attribute = [inner(item) for item in attribute]
            copied.__dict__[name] = dict(attribute) if type(attribute) is dict else inner(attribute)
        return copied
