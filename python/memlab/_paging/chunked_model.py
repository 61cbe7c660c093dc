"""A model in two parts: a leading part on the device, the rest on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from memlab._paging.device_transfer import device_of_first, to_device
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


class ChunkedModel:
    """Wraps the forwards of a model whose leading part runs on the device, and whose rest runs on the CPU."""

    def __init__(
        self, model: nn.Module, weights: list[Weight], residents: list[list[Tensor]], device: torch.device, capacity: int
    ) -> None:
        self.model = model
        self.weights = weights
        self.device = device
        self.capacity = capacity
        self.residents = residents  # Tensors that are not paged: on the device wherever a module there holds them.
        self.cpu = torch.device("cpu")
        self.modules = list(model.modules())
        self.on_cpu: set[nn.Module] = {model}  # The outermost modules that run on the CPU, with all that is in them.
        self.tracer: Tracer | None = None
        self.thread_state = threading.local()
        self.learning_lock = threading.RLock()  # Held in the traced forward.
        self.state = PlanState(str(device), chunked=True)
        with torch.no_grad(), torch.inference_mode(False):
            model.to("cpu")
        for weight in weights:
            weight.arena_storage = weight.tensors[0].tensor.untyped_storage()  # For the tracer.
        self.patch = ModulePatch(model, "chunked", _tensor_dicts)
        for index, module in enumerate(self.modules):
            self.patch.wrap(module, self._wrapper(module, index))
        self.patch.guard()

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
        """A call on another device; its result is moved to the caller's."""
        callers = self.thread_state.device
        self.thread_state.device = device
        try:
            result = original(*_cast(module, to_device(args, device)), **to_device(kwargs, device))
        finally:
            self.thread_state.device = callers
        return result if callers is None else to_device(result, callers)

    def _outermost_call(self, module: nn.Module, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.thread_state.device = None
        came_from = device_of_first((args, kwargs))
        if self.state.stage is Stage.TRACING:
            with self.learning_lock:
                if self.state.stage is Stage.TRACING:
                    self.tracer = Tracer(self.weights, self.cpu, reads_rows=True)
                    try:
                        with self.tracer:
                            self.tracer.boundary(2 * self.modules.index(module))
                            result = self._call_on(self.cpu, module, original, args, kwargs)
                        trace = self.tracer.trace
                    finally:
                        self.tracer = None
                    self._split(trace)
                    return result if came_from is None else to_device(result, came_from)
        device = self.cpu if self._runs_on_cpu(module) else self.device
        result = self._call_on(device, module, original, args, kwargs)
        return result if came_from is None else to_device(result, came_from)

    def _runs_on_cpu(self, module: nn.Module) -> bool:
        return any(module is inner for outermost in self.on_cpu for inner in outermost.modules())

    @torch.no_grad()
    @torch.inference_mode(False)
    def _split(self, trace: Trace) -> None:
        """Decides what runs where, and moves the leading part to the device."""
        used_by: dict[nn.Module, set[Weight]] = {}  # What a module's own code uses.
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
        on_cpu = {inner for outermost in self.on_cpu for inner in outermost.modules()}
        stay = {id(t) for m in on_cpu for tensors in _tensor_dicts(m).values() for t in tensors.values() if t is not None}
        for weight in self.weights:
            weight.arena_storage = None
            if weight not in rest:
                move_together([paged.tensor for paged in weight.tensors], self.device)
        for tensors in self.residents:
            if not all(id(tensor) in stay for tensor in tensors):
                move_together(tensors, self.device)
        for module in self.modules:
            if isinstance(module, nn.RNNBase) and module not in on_cpu:
                module.flatten_parameters()  # As PyTorch does when such a module is moved to a GPU.
        self._describe(order, rest)

    def _modules_on_cpu(self, used_by: dict[nn.Module, set[Weight]], rest: set[Weight]) -> set[nn.Module]:
        """The outermost modules that use a weight of `rest`, to which all weights in them and tied to them are added."""
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
                inner_ones = {part for module in on_cpu for part in module.modules() if part is not module}
                return on_cpu - inner_ones
            rest |= added

    def _describe(self, order: dict[Weight, None], rest: set[Weight]) -> None:
        state = self.state
        state.stage = Stage.SETTLED
        unused = [weight for weight in self.weights if weight not in order]
        state.units = [PlannedUnit(w.name, w.nbytes, w not in rest, 0) for w in (*order, *unused)]
        state.resident_unit_bytes = sum(unit.nbytes for unit in state.units if unit.resident)
        state.host_bytes = sum(unit.nbytes for unit in state.units if not unit.resident)
        state.pinned = False
        state.notes = [f"capacity {readable(self.capacity)}; {len(self.on_cpu)} parts run on the CPU"]


def _cast(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Floating-point inputs in the type of the layer's weights, where the layer accepts no other."""
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
