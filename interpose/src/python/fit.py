"""Applies what `memlab run --fit` decided to the running program: recomputes the activations of modules in backward.

Embedded in libmemlab.so and run after guards.py, in the agent's namespace. `MEMLAB_FIT` has the decision as JSON:

    {"early_gradients": true, "loss_in_rows": true, "host_state_bytes": 2147483648,
     "activations_bytes": [1073741824, 4294967296], "compiled_share": null,
     "checkpoint": [{"root": "GPT", "modules": ["blocks.0"]}],
     "described": "early gradients, the loss in rows …", "planned": "15.9 GiB"}

`root` is the class of an outermost module, and `modules` are names within it. Results stay the same bit for bit, or the
program stops with the name of the module. `early_gradients` releases gradients when the optimizer's step has ended. With
`rehearse`, memlab runs the program on a simulated card, and reports what would read them. `loss_in_rows`: see fit_loss.py.
`host_state_bytes`: see fit_state.py. `activations_bytes`: the most of them on the GPU, and all of them, see spill.py.
`compiled_share`: of the activations that compiled graphs would keep. `described` and `planned` are for the message with the
costs. The program's limit keeps PyTorch's allocator within the size that was asked for, and spill.py makes room if more is
needed.
"""

import atexit
import functools
import importlib
import inspect
import json
import operator
import os
import sys
import types
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fit_costs import _AGAIN, _LOSS, _STATE, _Costs, _unmeasured
    from fit_gradients import _Rehearsal, release_gradients
    from fit_loss import _LossInRows
    from fit_state import _HostState
    from guards import _Harmless, _on_module_calls
    from spill import _AwayActivations

_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "base_model.model")


def _within(module, name):
    """Returns the part with this name, or None."""
    for part in name.split(".") if name else ():
        module = getattr(module, "_modules", {}).get(part)
        if module is None:
            return None
    return module


def _unwrapped(root):
    """Yields the module and those that wrappers such as DistributedDataParallel hold, outermost first."""
    while root is not None:
        yield root
        root = next(filter(None, (_within(root, name) for name in _WRAPPERS)), None)


def _is_compiled(root, inner, name):
    """Returns True if a module's forward runs in a graph of Dynamo. `inner`: the part of the root that has this name."""
    parts = name.split(".")
    outer = [_within(inner, ".".join(parts[:end])) for end in range(len(parts))]
    for wrapper in _unwrapped(root):
        outer.append(wrapper)
        if wrapper is inner:
            break
    module = _within(inner, name)
    is_optimized = any(type(part).__name__ == "OptimizedModule" for part in outer)
    return is_optimized or any(getattr(part, "_compiled_call_impl", None) is not None for part in [*outer, module])


def _compiled_graphs():
    utils = sys.modules.get("torch._dynamo.utils")
    return utils.counters["stats"]["unique_graphs"] if utils is not None else 0


class _Recomputed:
    """Stands for the `forward` of a module: the same result, but backward computes the activations once more.

    It holds the module weakly. A cycle would keep the memory of a deleted model until the next garbage collection.
    """

    def __init__(self, fit, module, name, function):
        self.fit = fit
        self.module = weakref.ref(module)
        self.name = name
        self.function = function  # Takes the module first.
        self.is_checked = False  # True after the first forward, which found what forward changes:
        self.written: set = set()  # Buffers: (name of a part, name).
        self.changing: set = set()  # Attributes: (name of a part, name).
        self.generators: list = []  # Generators that attributes hold.

    def __getattr__(self, name):
        # For code that treats `forward` as a method: __code__, __globals__, __func__.
        if name == "__func__":
            return self.function
        return getattr(self.function, name)

    @property
    def __self__(self):
        return self.module()

    @property
    def __signature__(self):
        return inspect.signature(types.MethodType(self.function, self.module()))

    def __reduce__(self):  # As a method is pickled.
        return getattr, (self.module(), "forward")

    def __deepcopy__(self, memo):
        copied = memo.get(id(self.module()))
        if copied is None:
            return types.MethodType(self.function, self.module())
        return _Recomputed(self.fit, copied, self.name, self.function)

    def __call__(self, *arguments, **keywords):
        module = self.module()
        forward = functools.partial(self.function, module)
        if not self.fit.may_recompute():
            return forward(*arguments, **keywords)
        return self.run(module, forward, arguments, keywords)

    def run(self, module, forward, arguments, keywords):
        tensors: list = []
        generators = [*self.generators]
        try:
            tree = self.fit.copied((arguments, keywords), tensors, generators)
        except _Unknown as unknown:
            self.fit.leave_out(self, f"it is called with {unknown}, which its forward may change")
            return forward(*arguments, **keywords)
        # PyTorch would check and restore less, and name no module.
        call = _Call(self, module, forward, (tree, tensors, generators))
        return self.fit.checkpoint(call, use_reentrant=False, preserve_rng_state=False)


class _Unknown(Exception):
    """An argument of a type whose content may change."""


class _Attributes:
    """Attributes of a module's parts before a forward, apart from parameters, buffers and modules. Their containers are
    copied.

    `wanted`: the attributes of interest, by the name of their part and their own; None: all."""

    def __init__(self, parts, plain, wanted=None):
        self.plain = plain
        self.wanted = wanted
        self.parts = [
            (part, part_name, dict(part.__dict__), self.contents(part.__dict__))
            for part_name, part in (parts if wanted is None or wanted else ())
            if not type(part).__module__.startswith("torch.nn.")  # PyTorch's modules change no attributes.
        ]

    def contents(self, attributes):
        return {
            key: type(value)(value)
            for key, value in attributes.items()
            if type(value) in (list, dict, set) and key not in self.plain
        }

    def values(self):
        """Yields (part, its name, name of the attribute, its value, its content if it is a container)."""
        for part, part_name, before, contents in self.parts:
            for key, value in before.items():
                if key not in self.plain and (self.wanted is None or (part_name, key) in self.wanted):
                    yield part, part_name, key, value, contents.get(key)

    def changed(self):
        """Returns the attributes that have another value or other content now: (name of the part, name)."""
        changed = set()
        for part, part_name, before, contents in self.parts:
            now = part.__dict__
            if not all(map(operator.is_, map(now.get, before), before.values())):
                changed.update(
                    (part_name, key) for key in before if now.get(key) is not before[key] and key not in self.plain
                )
            changed.update((part_name, key) for key in contents if not self.is_same(now.get(key), contents[key]))
        return changed

    @staticmethod
    def is_same(now, content):
        if type(now) is not type(content):
            return False
        if type(now) is dict:
            return list(now) == list(content) and all(now[key] is content[key] for key in now)
        return len(now) == len(content) and all(map(operator.is_, now, content))

    def put_back(self):
        """Gives the attributes these values. Returns a function that undoes it."""
        now = [(part, key, part.__dict__.get(key)) for part, _, key, _, _ in self.values()]
        for part, _, key, value, content in self.values():
            part.__dict__[key] = value if content is None else type(content)(content)

        def undo():
            for part, key, value in now:
                part.__dict__[key] = value

        return undo


class _Call:
    """A forward of a module and its recomputation, which finds everything as the forward did."""

    def __init__(self, recomputed, module, forward, given):
        self.recomputed = recomputed
        self.fit = recomputed.fit
        self.forward = forward
        self.tree, self.tensors, generators = given
        self.parts = list(module.named_modules())
        self.has_run = False
        self.modes = [part.training for _, part in self.parts]
        parameters = [
            (f"parameter {part_name}.{name}", parameter)
            for part_name, part in self.parts
            for name, parameter in part._parameters.items()
            if parameter is not None
        ]
        watched = [*((f"argument {index}", tensor) for index, tensor in enumerate(self.tensors)), *parameters]
        self.versions = [(what, weakref.ref(tensor), self.fit.version(tensor)) for what, tensor in watched]
        self.generators = [(generator, generator.get_state()) for generator in generators]
        self.devices = {tensor.device for _, tensor in watched if tensor.device.type == "cuda"}
        self.random = self.random_states()
        self.buffers: list = []  # (part, its name, name of the buffer, value before the forward)
        self.attributes = None

    def __call__(self):
        arguments, keywords = self.fit.filled(self.tree, self.tensors, self.has_run)
        if self.has_run:
            return self.again(arguments, keywords)
        self.has_run = True
        recomputed = self.recomputed
        self.attributes = _Attributes(self.parts, self.fit.plain, recomputed.changing if recomputed.is_checked else None)
        self.buffers = list(self.values_before())
        if not recomputed.is_checked:
            values = (value for *_, value, _ in self.attributes.values())
            recomputed.generators = [value for value in values if isinstance(value, self.fit.generator)]
            self.generators += [(generator, generator.get_state()) for generator in recomputed.generators]
        result = self.forward(*arguments, **keywords)
        if not recomputed.is_checked:
            self.find_written()
        return result

    def random_states(self):
        cuda = self.fit.torch.cuda
        return self.fit.torch.get_rng_state(), [(device, cuda.get_rng_state(device)) for device in self.devices]

    def set_random_states(self, states):
        of_cpu, of_devices = states
        self.fit.torch.set_rng_state(of_cpu)
        for device, state in of_devices:
            self.fit.torch.cuda.set_rng_state(state, device)

    def set_modes(self, modes):
        for (_, part), mode in zip(self.parts, modes, strict=True):
            if part.training is not mode:
                part.training = mode

    def is_kept(self, part, key):
        # Kernels of normalizations write the statistics without raising their version.
        return getattr(part, "track_running_stats", False) or key in self.recomputed.written

    def values_before(self):
        for part_name, part in self.parts:
            for name, buffer in part._buffers.items():
                if buffer is not None and (not self.recomputed.is_checked or self.is_kept(part, (part_name, name))):
                    yield part, part_name, name, buffer.detach().clone()

    def find_written(self):
        """Compares the module's state with that before its first forward, once: some operations write buffers without
        raising their version."""
        recomputed = self.recomputed
        recomputed.is_checked = True
        recomputed.changing = self.attributes.changed()
        for part, part_name, name, before in self.buffers:
            now = part._buffers.get(name)
            if now is None or now.shape != before.shape or not self.fit.torch.equal(now, before):
                recomputed.written.add((part_name, name))
        self.buffers = [entry for entry in self.buffers if self.is_kept(entry[0], (entry[1], entry[2]))]

    def again(self, arguments, keywords):
        for what, reference, version in self.versions:
            tensor = reference()
            if tensor is not None and self.fit.version(tensor) != version:
                self.refuse(f"{what} was changed between its forward and its backward")
        modes = [part.training for _, part in self.parts]
        buffers = [(part, name, part._buffers.get(name)) for part, _, name, _ in self.buffers]
        generators = [(generator, generator.get_state()) for generator, _ in self.generators]
        random = self.random_states()
        self.set_random_states(self.random)
        undo = self.attributes.put_back()
        self.set_modes(self.modes)
        others = _Attributes(self.parts, self.fit.plain)
        try:
            for part, _, name, before in self.buffers:
                part._buffers[name] = before.clone()
            for generator, state in self.generators:
                generator.set_state(state)
            with self.fit.part(_AGAIN):
                return self.forward(*arguments, **keywords)
        finally:
            unknown = others.changed() - self.recomputed.changing
            undo()
            self.set_random_states(random)
            self.set_modes(modes)
            for part, name, buffer in buffers:
                part._buffers[name] = buffer
            for generator, state in generators:
                generator.set_state(state)
            if unknown:
                part_name, key = min(unknown)
                self.refuse(f"its forward changes the attribute {key} of {part_name or 'itself'} only sometimes")

    def refuse(self, why):
        name = self.recomputed.name
        raise RuntimeError(
            f"memlab --fit: the activations of {name} cannot be computed again: {why}. Run with --fit-without {name}"
        )


class _Place:
    """Place of a tensor in arguments."""

    def __init__(self, index):
        self.index = index


class _Cache:
    """A cache of keys and values of Transformers, which forward extends: the object, and a copy from before that."""

    # Their update makes new tensors.
    GROWING = ("DynamicCache", "EncoderDecoderCache", "DynamicLayer", "DynamicSlidingWindowLayer")

    def __init__(self, cache):
        self.cache = cache
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


class _Fit:
    """The decision, and the modules to which it is applied."""

    def __init__(self, native, torch, decision, tag_state=None):
        self.native = native
        self.torch = torch
        self.tag_state = tag_state
        self.loss_in_rows = decision.get("loss_in_rows", False)
        self.host_state_bytes = decision.get("host_state_bytes", 0)
        self.wanted = {part["root"]: list(part["modules"]) for part in decision.get("checkpoint", ())}
        self.releases_gradients = decision.get("early_gradients", False)
        self.rehearses = decision.get("rehearse", False)
        self.is_rehearsed = False  # True after the first step.
        self.graphs_before = _compiled_graphs()
        self.missing = {(root, name) for root, names in self.wanted.items() for name in names}
        self.seen: Any = weakref.WeakSet()  # Roots to which the decision was applied.
        self.generator = torch.Generator
        self.plain = {*torch.nn.Module().__dict__, "forward"}  # Attributes that every module has.
        self.left_out: set = set()
        self.hook = None
        self.loss: Any = None
        self.host_state: Any = None
        self.activations: Any = None
        self.activations_bytes = decision.get("activations_bytes")
        self.compiled_share = decision.get("compiled_share")
        self.described = decision.get("described")
        self.planned = decision.get("planned")
        self.part = _unmeasured

    def warn(self, text):
        self.native.warn(f"--fit: {text}")

    def attach(self):
        """Looks at each call of a module until the wanted ones are found. By the first call in training, frameworks have
        moved and wrapped the model."""
        self.checkpoint = importlib.import_module("torch.utils.checkpoint").checkpoint
        optimizers = importlib.import_module("torch.optim.optimizer")
        if self.described and not self.rehearses:
            costs = _Costs(self.torch, self.say_costs, self.native.is_capturing)
            costs.attach(optimizers)
            self.part = costs.part
        if self.releases_gradients:
            release = _Rehearsal(self.native, self.torch, optimizers).after_step if self.rehearses else release_gradients
            optimizers.register_optimizer_step_post_hook(release)
        if self.loss_in_rows:
            report = self.warn if self.rehearses else None
            self.loss = _LossInRows(self.torch, report, functools.partial(self.part, _LOSS))
            self.loss.install()
        if self.host_state_bytes:
            self.host_state = _HostState(self.warn, self.torch, self.tag_state, self.host_state_bytes, self.rehearses)
            self.host_state.waiting = functools.partial(self.part, _STATE)
            self.host_state.attach(optimizers)
        if self.activations_bytes is not None:
            self.activations = _AwayActivations(self.torch, lambda: 0, self.warn)
            self.activations.budget, self.activations.largest = self.activations_bytes
            self.activations.attach()
        if self.compiled_share is not None:
            with _Harmless(lambda error: self.warn(f"compiled graphs keep all activations ({error})")):
                config = importlib.import_module("torch._functorch.config")
                if config.activation_memory_budget == 1.0:  # The program has set none.
                    config.activation_memory_budget = self.compiled_share
        if self.rehearses:
            atexit.register(self.say_missing)
            optimizers.register_optimizer_step_post_hook(self.after_rehearsed_step)
        if self.wanted:
            (self.hook,) = _on_module_calls(self.torch, self.before_forward)

    def say_costs(self, step, parts):
        spent = [f"{milliseconds:.1f} ms to {name}" for name, milliseconds in parts.items()]
        of_it = f", of it {' and '.join(spent)}" if spent else ""
        reserved = f"{self.torch.cuda.max_memory_reserved() / 2**30:.2f} GiB"
        planned = f"{self.planned} were planned for them and the context"
        self.warn(f"applied {self.described}. A step takes {step:.0f} ms{of_it}. PyTorch has reserved {reserved}; {planned}")

    def say_missing(self):
        for kind, name in sorted(self.missing):
            why = f"no {kind} with it was called outside of compiled code"
            self.native.warn(f"--fit: the activations of {name} are not recomputed: {why}")

    def after_rehearsed_step(self, *_):
        """Reports once what a step has shown. The recording ends after some steps, before functions run at exit."""
        if self.is_rehearsed:
            return
        self.is_rehearsed = True
        count = _compiled_graphs() - self.graphs_before
        if count:
            self.warn(f"{count} graphs are compiled")
        if self.activations is not None and self.activations.blocks == 0:
            self.activations.fail("no module is called in training, outside of compiled code")

    after_rehearsed_step._torchdynamo_disable = True  # type: ignore[attr-defined]

    def before_forward(self, module, _arguments):
        if self.torch.compiler.is_compiling():
            return  # Dynamo traces this line, and no break of the graph is needed.
        if type(module).__name__ not in self.wanted or not self.torch.is_grad_enabled() or module in self.seen:
            return
        with _Harmless(lambda error: self.native.warn(f"--fit is not applied to {type(module).__name__} ({error})")):
            self.apply(module)

    def end_if_done(self):
        # Dynamo would compile everything again without the hook.
        if not self.missing and self.hook is not None and "torch._dynamo" not in sys.modules:
            self.hook.remove()
            self.hook = None

    def apply(self, root):
        kind = type(root).__name__
        self.seen.add(root)
        for name in self.wanted[kind]:
            found = ((inner, _within(inner, name)) for inner in _unwrapped(root))
            inner, module = next((pair for pair in found if pair[1] is not None), (root, None))
            if module is None:
                continue
            self.missing.discard((kind, name))
            if _is_compiled(root, inner, name):
                self.native.warn(f"--fit: the activations of {name} are not recomputed: they are in a compiled graph")
            elif reason := self.why_not(module):
                self.native.warn(f"--fit: the activations of {name} are not recomputed: {reason}")
            else:
                self.wrap(module, name)
        self.end_if_done()

    def why_not(self, module):
        """Returns the reason why a module cannot be recomputed, or None."""
        for part_name, part in module.named_modules():
            hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
            if part is not module and any(getattr(part, kind, None) for kind in hooks):
                return f"{part_name} has hooks, which would run twice"
        return None

    def wrap(self, module, name):
        kinds = {kind.__name__ for kind in type(module).__mro__}
        own = module.__dict__.get("forward")
        if isinstance(own, _Recomputed):
            return
        if "GradientCheckpointingLayer" in kinds:
            # Transformers calls it with the caches left out.
            stand_in = _Recomputed(self, module, name, type(module).forward)

            def recompute(function, *arguments):
                forward, keywords = function, {}
                if isinstance(function, functools.partial):
                    forward, keywords = functools.partial(function.func, *function.args), function.keywords
                if not self.may_recompute():
                    return forward(*arguments, **keywords)
                return stand_in.run(module, forward, arguments, keywords)

            module._gradient_checkpointing_func = recompute
            module.gradient_checkpointing = True
            return

        def run_own(_module, *arguments, **keywords):
            return own(*arguments, **keywords)

        module.forward = _Recomputed(self, module, name, type(module).forward if own is None else run_own)

    def may_recompute(self):
        torch = self.torch
        return (
            torch.is_grad_enabled()
            and not torch.jit.is_tracing()
            and not torch.compiler.is_compiling()
            and torch._C._functorch.peek_interpreter_stack() is None
            and not getattr(torch.fx._symbolic_trace, "_is_fx_tracing_flag", False)  # Its function warns.
        )

    def leave_out(self, recomputed, why):
        if recomputed.name not in self.left_out:
            self.left_out.add(recomputed.name)
            self.native.warn(f"--fit: the activations of {recomputed.name} are not recomputed: {why}")

    def version(self, tensor):
        return 0 if tensor.is_inference() else tensor._version

    def copied(self, value, tensors, generators):
        """Copies the containers of arguments, so that later changes of them have no effect. Adds the tensors to a list, and
        puts their places in the copy. Adds the random generators to another list."""
        torch = self.torch
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return _Place(len(tensors) - 1)
        if type(value) in (list, tuple, set, frozenset):
            return type(value)(self.copied(item, tensors, generators) for item in value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self.copied(item, tensors, generators) for item in value))
        if type(value) is dict:
            return {key: self.copied(item, tensors, generators) for key, item in value.items()}
        known = (bool, int, float, complex, str, bytes, slice, type, types.FunctionType, types.BuiltinFunctionType)
        known += (torch.dtype, torch.device, torch.Size, torch.memory_format, torch.layout)
        if isinstance(value, torch.Generator):
            generators.append(value)
            return value
        if value is None or value is Ellipsis or isinstance(value, known):
            return value
        if _Cache.is_growing(value):
            return _Cache(value)
        raise _Unknown(f"an object of class {type(value).__name__}")

    def filled(self, value, tensors, is_again):
        """The inverse of `copied`: new containers with the tensors in their places. Caches are as before if `is_again`."""
        if isinstance(value, _Place):
            return tensors[value.index]
        if isinstance(value, _Cache):
            return _Cache.copied(value.before) if is_again else value.cache
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self.filled(item, tensors, is_again) for item in value))
        if type(value) in (list, tuple, set, frozenset):
            return type(value)(self.filled(item, tensors, is_again) for item in value)
        if type(value) is dict:
            return {key: self.filled(item, tensors, is_again) for key, item in value.items()}
        return value


def start_fit(native, torch, tag_state):
    """Applies the decision of `MEMLAB_FIT`, if there is one. Returns it, or None.

    `tag_state(parameter, tensor, key)` is called with state of optimizers at new addresses."""
    text = os.environ.get("MEMLAB_FIT")
    if not text:
        return None
    fit = _Fit(native, torch, json.loads(text), tag_state)
    fit.attach()
    return fit
