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
import json
import os
import sys
import types
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fit_costs import _LOSS, _STATE, _Costs, _unmeasured
    from fit_gradients import _EarlyGradients
    from fit_loss import _LossInRows
    from fit_recompute import _Cache, _name_mismatches, _Place, _Recomputed, _Scripted, _show_plain_forwards, _Unknown
    from fit_snapshot import _SCALARS, _SEARCHED_ITEMS
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


class _Fit:
    """The decision, and the modules to which it is applied."""

    def __init__(self, native, torch, decision, tag_state=None):
        self.native = native
        self.torch = torch
        self.tag_state = tag_state
        self.loss_in_rows = decision.get("loss_in_rows", False)
        self.host_state_bytes = decision.get("host_state_bytes", 0)
        self.wanted: dict = {}
        for part in decision.get("checkpoint", ()):  # Two models may have the same class.
            names = self.wanted.setdefault(part["root"], [])
            names += [name for name in part["modules"] if name not in names]
        self.releases_gradients = decision.get("early_gradients", False)
        self.rehearses = decision.get("rehearse", False)
        self.is_rehearsed = False  # True after the first step.
        self.graphs_before = _compiled_graphs()
        self.missing = {(root, name) for root, names in self.wanted.items() for name in names}
        self.seen: Any = weakref.WeakSet()  # Roots to which the decision was applied, and their parts.
        self.ignored = {*torch.nn.Module().__dict__, "forward"} - {"training"}  # Attributes that every module has.
        self.left_out: set = set()
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
        checkpointing = importlib.import_module("torch.utils.checkpoint")
        self.checkpoint = checkpointing.checkpoint
        _name_mismatches(checkpointing)
        optimizers = importlib.import_module("torch.optim.optimizer")
        if self.described and not self.rehearses:
            costs = _Costs(self.torch, self.say_costs, self.native.is_capturing)
            costs.attach(optimizers)
            self.part = costs.part
        if self.releases_gradients:
            _EarlyGradients(self.native, self.torch, optimizers, self.rehearses)
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
            self.scripted = _Scripted(self.torch)
            # The hook stays: another model of the same class may be called later.
            _show_plain_forwards(self.torch, _on_module_calls(self.torch, self.before_forward))
            with _Harmless(lambda _: None):
                importlib.import_module("numpy.random")  # A forward that imported it would seem to draw.

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

    def apply(self, root):
        kind = type(root).__name__
        self.seen.update(root.modules())  # Parts of the same class are no outermost modules.
        # The copies would call the original's forward.
        is_copied = any(len(getattr(outer, "device_ids", None) or ()) > 1 for outer in _unwrapped(root))
        for name in self.wanted[kind]:
            found = ((inner, _within(inner, name)) for inner in _unwrapped(root))
            inner, module = next((pair for pair in found if pair[1] is not None), (root, None))
            if module is None:
                continue
            self.missing.discard((kind, name))
            if is_copied:
                self.native.warn(f"--fit: the activations of {name} are not recomputed: DataParallel copies the model")
            elif _is_compiled(root, inner, name):
                self.native.warn(f"--fit: the activations of {name} are not recomputed: they are in a compiled graph")
            elif reason := self.why_not(self.parts_of(module)):
                self.native.warn(f"--fit: the activations of {name} are not recomputed: {reason}")
            else:
                self.wrap(module, name)

    def why_not(self, parts):
        """Returns the reason why a module with these parts cannot be recomputed, or None."""
        for part_name, part in parts:
            if part_name and (
                part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
            ):
                return f"{part_name} has hooks, which would run twice"
            if isinstance(part, self.torch.jit.ScriptModule):  # PyTorch stops a recomputation by an exception.
                return f"{part_name or 'it'} is compiled by TorchScript"
        return None

    def wrap(self, module, name):
        own = module.__dict__.get("forward")
        if type(own) is _Recomputed:
            if own.module() is module:
                return
            own = own.function
        module.forward = _Recomputed(self, module, name, own)

    def may_recompute(self):
        torch = self.torch
        return (
            torch.is_grad_enabled()
            and not torch.jit.is_tracing()
            and not torch.compiler.is_compiling()
            and torch._C._functorch.peek_interpreter_stack() is None
            and not getattr(torch.fx._symbolic_trace, "_is_fx_tracing_flag", False)  # Its function warns.
        )

    def parts_of(self, module):
        """Returns the names and modules of a module's parts, and of modules in its attributes that are no parts of it."""
        parts = list(module.named_modules())
        known = {id(part) for _, part in parts}
        for name, part in parts:  # The list grows.
            attributes = part.__dict__
            for key in attributes.keys() - self.ignored:
                value = attributes[key]
                for item in () if type(value) in _SCALARS else self.inner_modules(value):
                    inner = list(item.named_modules(prefix=f"{name}.{key}".lstrip(".")))
                    if any(found is module for _, found in inner):
                        continue  # It is around this one.
                    parts += [pair for pair in inner if id(pair[1]) not in known]
                    known.update(id(found) for _, found in inner)
        return parts

    def inner_modules(self, value):
        kind = type(value)
        items = value if kind in (list, tuple) else value.values() if kind is dict else (value,)
        if len(items) > _SEARCHED_ITEMS:
            return ()
        return [item for item in list(items) if issubclass(type(item), self.torch.nn.Module)]

    def leave_out(self, recomputed, why):
        if recomputed.name not in self.left_out:
            self.left_out.add(recomputed.name)
            self.native.warn(f"--fit: the activations of {recomputed.name} are not recomputed: {why}")

    def is_distributed(self):
        distributed = self.torch.distributed
        return distributed.is_available() and distributed.is_initialized()

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
            return tuple.__new__(type(value), [self.copied(item, tensors, generators) for item in value])
        if type(value) is dict:
            return {key: self.copied(item, tensors, generators) for key, item in value.items()}
        known = (bool, int, float, complex, str, bytes, slice, type)
        known += (torch.dtype, torch.device, torch.Size, torch.memory_format, torch.layout)
        if isinstance(value, torch.Generator):
            generators.append(value)
            return value
        if value is None or value is Ellipsis or isinstance(value, known):
            return value
        # Others may write what they are bound to.
        if isinstance(value, types.FunctionType) and not value.__closure__:
            return value
        if isinstance(value, types.BuiltinFunctionType) and isinstance(value.__self__, (types.ModuleType, type(None))):
            return value
        if _Cache.is_growing(value):
            return _Cache(value)
        raise _Unknown(f"an object of class {type(value).__name__}")

    def filled(self, value, tensors):
        """The inverse of `copied`: new containers with the tensors in their places, and caches as before the forward."""
        if isinstance(value, _Place):
            return tensors[value.index]
        if isinstance(value, _Cache):
            return _Cache.copied(value.before)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return tuple.__new__(type(value), [self.filled(item, tensors) for item in value])
        if type(value) in (list, tuple, set, frozenset):
            return type(value)(self.filled(item, tensors) for item in value)
        if type(value) is dict:
            return {key: self.filled(item, tensors) for key, item in value.items()}
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
