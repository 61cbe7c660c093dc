"""A model in two parts: the leading part on the device, the rest on the CPU."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from memlab._paging.added_tensors import KnownTensors
from memlab._paging.device_transfer import device_of_first, to_device
from memlab._paging.kept_tensors import KeptTensors
from memlab._paging.module_patch import ModulePatch
from memlab._paging.paged_tensor import Weight
from memlab._paging.plan_state import PlannedUnit, PlanState, Stage
from memlab._paging.sizes import readable
from memlab._paging.tensor_memory import move_together
from memlab._paging.torch_private import TENSOR_DICTS, Convolution
from memlab._paging.tracing import Trace, Tracer

# Modules that raise for inputs of another type than their weights.
_CASTING = (nn.Linear, Convolution, nn.Bilinear, nn.MultiheadAttention, nn.RNNBase)


def _tensor_dicts(module: nn.Module) -> dict[str, dict[str, Any]]:
    return {attribute: dict(module.__dict__[attribute]) for attribute in TENSOR_DICTS}


class _LearnedError(Exception):
    """Ends a forward that runs only to learn the order of execution."""


class ChunkedModel:
    """Wraps the forwards of a model whose leading part runs on the device and whose rest runs on the CPU."""

    def __init__(
        self, model: nn.Module, weights: list[Weight], residents: list[list[Tensor]], device: torch.device, capacity: int
    ) -> None:
        self.model = model
        self.weights = weights
        self.device = device
        self.capacity = capacity
        self.residents = residents  # Tensors that are not paged: on the device if a module there holds them.
        self.cpu = torch.device("cpu")
        self.modules = list(model.modules())
        self.on_cpu: set[nn.Module] = set(self.modules)  # With all modules inside them.
        self.tracer: Tracer | None = None
        self.trace = Trace()
        self.traced: set[nn.Module] = set()  # Modules whose forwards the trace contains.
        self.thread_state = threading.local()
        self.learning_lock = threading.RLock()  # Held in the traced forward.
        self.state = PlanState(str(device), chunked=True)
        with torch.no_grad(), torch.inference_mode(False):
            model.to("cpu")
        for weight in weights:
            weight.arena_storage = weight.tensors[0].tensor.untyped_storage()  # For the tracer.
        self.patch = ModulePatch(model, "chunked", _tensor_dicts)
        self.known = KnownTensors(model)
        for index, module in enumerate(self.modules):
            self.patch.wrap(module, self._wrapper(module, index))
        if callable(getattr(type(model), "generate", None)):
            self.patch.wrap(model, self._generating, "generate")
        self.patch.guard()

    def _generating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps transformers' loop around forwards.

        The loop asks the model for its device, which must not change within it.
        """

        def generate(*args: Any, **kwargs: Any) -> Any:
            if self.state.stage is Stage.TRACING:
                self._learn(original, args, kwargs)
            came_from, device = device_of_first((args, kwargs)), next(self.model.parameters()).device
            result = original(*to_device(args, device), **to_device(kwargs, device))
            return result if came_from is None else to_device(result, came_from)

        return generate

    def _learn(self, generate: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Generates until the order of execution is known.

        Leaves the streamer, the KV cache and the random state untouched.
        """
        others: dict[str, Any] = {"streamer": None, "past_key_values": copy.deepcopy(kwargs.get("past_key_values"))}
        kwargs = {name: others.get(name, value) for name, value in kwargs.items()}
        self.thread_state.only_learns = True
        try:
            with torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
                generate(*args, **kwargs)
        except _LearnedError:
            pass
        finally:
            self.thread_state.only_learns = False

    def _wrapper(self, module: nn.Module, index: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                device = getattr(self.thread_state, "device", None)
                if device is None:
                    return self._outermost_call(module, original, args, kwargs)
                if self.tracer is not None:
                    self.tracer.boundary(2 * index)
                    result = original(*_cast(module, args), **kwargs)
                    self.tracer.boundary(2 * index + 1)
                    return result
                if module in self.on_cpu and device != self.cpu:
                    return self._call_on(self.cpu, module, original, args, kwargs)
                return original(*_cast(module, args), **kwargs)

            return forward

        return wrapper

    def _call_on(self, device: torch.device, module: nn.Module, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs a call on another device. Its result is moved to the caller's device."""
        callers = self.thread_state.device
        self.thread_state.device = device
        try:
            result = original(*_cast(module, to_device(args, device)), **to_device(kwargs, device))
        finally:
            self.thread_state.device = callers
        return result if callers is None else to_device(result, callers)

    def _outermost_call(self, module: nn.Module, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        try:
            return self._forward(module, original, args, kwargs)
        except RuntimeError as error:
            self.known.explain(error, "chunked", "call memlab.unpage(model) before adding to it, and chunk it again")
            raise

    def _forward(self, module: nn.Module, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.thread_state.device = None
        came_from = device_of_first((args, kwargs))
        if self.state.stage is Stage.TRACING:
            with self.learning_lock:
                if self.state.stage is Stage.TRACING:
                    self.tracer = Tracer(self.weights, self.cpu, reads_rows=True)
                    kept = KeptTensors(self._traced_module)
                    try:
                        with self.tracer, kept:
                            self.tracer.boundary(2 * self.modules.index(module))
                            result = self._call_on(self.cpu, module, original, args, kwargs)
                        trace = self.tracer.trace
                    finally:
                        self.tracer = None
                    if self._is_complete(module, trace):
                        self._split(self.trace)
                        kept.move(self.device, set(self.modules) - self.on_cpu, (args, kwargs), result)
                        if getattr(self.thread_state, "only_learns", False):
                            raise _LearnedError
                    return result if came_from is None else to_device(result, came_from)
        device = self.cpu if module in self.on_cpu else self.device
        result = self._call_on(device, module, original, args, kwargs)
        return result if came_from is None else to_device(result, came_from)

    def _is_complete(self, module: nn.Module, trace: Trace) -> bool:
        """Adds a traced forward.

        Returns True once it shows the order: when it is the model's forward, or a part is called for the second time. (The
        encoder of an encoder-decoder runs before the model.)
        """
        if module in self.traced:
            return True
        self.traced.add(module)
        self.trace.extend(trace)
        return module is self.model

    def _traced_module(self) -> nn.Module:
        """Returns the module that the traced forward is calling."""
        assert self.tracer is not None
        return self.modules[self.tracer.trace.modules[self.tracer.calls[-1]]]

    @torch.no_grad()
    @torch.inference_mode(False)
    def _split(self, trace: Trace) -> None:
        """Assigns each module to the device or the CPU, and moves the leading part to the device."""
        used_by: dict[nn.Module, set[Weight]] = {}  # Weights used by a module's own code.
        order: dict[Weight, None] = {}
        for segment in trace.segments:
            if segment.calls:
                module = self.modules[trace.modules[segment.calls[-1]]]
                used_by.setdefault(module, set()).update(segment.weights)
                order.update(segment.weights)
        used = 0
        leading: set[Weight] = set()
        for weight in order:
            used += weight.nbytes
            if used > self.capacity:
                break
            leading.add(weight)
        rest = set(self.weights) - leading
        self.on_cpu = self._modules_on_cpu(used_by, rest)
        held = (tensors.values() for module in self.on_cpu for tensors in _tensor_dicts(module).values())
        stay = {id(tensor) for tensors in held for tensor in tensors if tensor is not None}
        for weight in self.weights:
            weight.arena_storage = None
            if weight not in rest:
                move_together([paged.tensor for paged in weight.tensors], self.device)
        for tensors in self.residents:
            if not all(id(tensor) in stay for tensor in tensors):
                move_together(tensors, self.device)
        for module in self.modules:
            if isinstance(module, nn.RNNBase) and module not in self.on_cpu:
                module.flatten_parameters()  # As PyTorch does when such a module moves to a GPU.
        self._describe(order, rest)

    def _modules_on_cpu(self, used_by: dict[nn.Module, set[Weight]], rest: set[Weight]) -> set[nn.Module]:
        """Returns modules that use a weight of `rest`, and all modules in them.

        Adds weights in them, and weights tied to those, to `rest`.
        """
        held: dict[nn.Module, set[Weight]] = {module: set() for module in self.modules}
        for weight in self.weights:
            for paged in weight.tensors:
                for entry in paged.entries:
                    held[entry.module].add(weight)
        while True:
            on_cpu: set[nn.Module] = set()
            for module in self.modules:
                inner = list(module.modules())
                own = used_by.get(module, set()) | held[module]
                subtree = set().union(*(held[part] for part in inner))
                if own & rest or (subtree and subtree <= rest):
                    on_cpu.update(inner)
            added = set().union(*(used_by.get(m, set()) | held[m] for m in on_cpu), set()) - rest
            if not added:
                return on_cpu
            rest |= added

    def _describe(self, order: dict[Weight, None], rest: set[Weight]) -> None:
        state = self.state
        state.stage = Stage.SETTLED
        unused = [weight for weight in self.weights if weight not in order]
        state.units = [PlannedUnit(w.name, w.nbytes, w not in rest, 0) for w in (*order, *unused)]
        state.resident_unit_bytes = sum(unit.nbytes for unit in state.units if unit.resident)
        state.host_bytes = sum(unit.nbytes for unit in state.units if not unit.resident)
        state.pinned = False
        inner = {part for module in self.on_cpu for part in module.modules() if part is not module}
        parts = len(self.on_cpu - inner)
        state.notes = [f"capacity {readable(self.capacity)}; {parts} parts run on the CPU"]


def _cast(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Casts floating-point inputs to the type of the layer's weights, where the layer accepts no other."""
    if not isinstance(module, _CASTING) or torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
        return args
    types = {p.dtype for p in module.parameters(recurse=False) if p.is_floating_point()}
    if len(types) != 1:
        return args
    (wanted,) = types
    return tuple(
        arg.to(wanted) if isinstance(arg, Tensor) and arg.is_floating_point() and arg.dtype != wanted else arg
        for arg in args
    )
