"""``memlab.chunk``: the leading part of a model stays on the GPU, the rest runs on the CPU, or is paged."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import NoneType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from memlab._paging.device_transfer import device_of_first, moved
from memlab._paging.module_patch import Takeover
from memlab._arguments import require_model
from memlab.paging import device_of, page, refuse_twice
from memlab.plan import Plan, PlannedUnit
from memlab._paging.planning import free_memory
from memlab._paging.sizes import bytes_of, readable
from memlab._paging.tracing import Trace, Tracer
from memlab._paging.paged_tensor import KINDS, Weight, collect, move_together

Model = TypeVar("Model", bound=nn.Module)

# Modules of PyTorch's own that want their input in the type of their weights, and would raise otherwise.
_CASTING = (nn.Linear, nn.modules.conv._ConvNd, nn.Bilinear, nn.MultiheadAttention, nn.RNNBase)


def chunk(
    model: Model,
    device: torch.device | str = "cuda",
    max_capacity: float | str | None = None,
    *,
    rest: str = "cpu",
    _bytes_per_second: float | None = None,
) -> Model:
    """Keeps on the device what fits, and runs the rest where it is. In place, and returned.

    With ``rest="cpu"`` the largest leading part, in the order of execution, that fits is on the device; what comes after
    it runs on the CPU, and activations are moved (and cast, where a layer needs it) where they cross. The order is
    learned in the first forward, which runs on the CPU. Results come back to where the inputs were.

    With ``rest="page"`` it is `memlab.page` with this budget: the rest comes over the bus and runs on the device, and what
    stays there is chosen for speed, which is not the leading part: residents spread over the model hide more copies.

    Args:
        max_capacity: a number of parameters, or device memory as "4GiB"; None for what is free.
        rest: "cpu" or "page".

    Raises: RuntimeError if it is paged or chunked already; ValueError or TypeError if an argument is off.
    """
    require_model("chunk", model)
    if rest not in ("cpu", "page"):
        raise ValueError(f'rest={rest!r}: must be "cpu" or "page"')
    if isinstance(max_capacity, bool) or not isinstance(max_capacity, (int, float, str, NoneType)):
        raise TypeError(f'max_capacity={max_capacity!r}: must be a number of parameters, a size such as "8GiB", or None')
    refuse_twice(model)
    where = device_of(device)
    weights, kept = collect(model)
    capacity = _capacity(weights, where, max_capacity)
    if rest == "page":
        for weight in weights:
            weight.homes.clear()  # Lest these references be taken for somebody's who may edit the weights.
        return page(model, where, budget=capacity, _bytes_per_second=_bytes_per_second)
    Chunk(model, weights, kept, where, capacity)
    return model


def _capacity(weights: list[Weight], device: torch.device, most: float | str | None) -> int:
    """Bytes that may stay on the device."""
    if isinstance(most, str):
        return bytes_of(most)
    nbytes = sum(weight.nbytes for weight in weights)
    if most is not None:
        if not 0 <= most < float("inf"):
            raise ValueError(f"max_capacity={most!r}: must be a number of parameters, 0 or more")
        return int(most * nbytes / max(sum(weight.parameters for weight in weights), 1))
    if device.type == "cpu":
        return nbytes
    return free_memory(device) * 8 // 10  # What is left is for activations, which nobody has seen yet.


class Chunk:
    """A model in two parts."""

    def __init__(
        self, model: nn.Module, weights: list[Weight], kept: list[list[Tensor]], device: torch.device, capacity: int
    ) -> None:
        self.model = model
        self.weights = weights
        self.device = device
        self.capacity = capacity
        self.kept = kept
        self.cpu = torch.device("cpu")
        self.modules = list(model.modules())
        self.islands: set[nn.Module] = {model}  # Outermost modules that run on the CPU, with all that is in them.
        self.tracer: Tracer | None = None
        self.thread = threading.local()
        self.settling = threading.RLock()
        self.plan = Plan(str(device), elsewhere="cpu")
        with torch.no_grad(), torch.inference_mode(False):
            model.to("cpu")
        for weight in weights:
            weight.in_arena = weight.homes[0].tensor.untyped_storage()
        self.takeover = Takeover(model, "chunked", lambda module: {kind: dict(module.__dict__[kind]) for kind in KINDS})
        for index, module in enumerate(self.modules):
            self.takeover.wrap(module, self._wrapper(module, index))
        self.takeover.guard()
        self.takeover.mark(self.plan)
        self.plan.release = self.takeover.release

    def _wrapper(self, module: nn.Module, index: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
            def forward(*args: Any, **kwargs: Any) -> Any:
                now = getattr(self.thread, "now", None)
                if now is None:
                    return self._from_outside(module, original, args, kwargs)
                if self.tracer is not None:
                    self.tracer.boundary(2 * index)
                    result = original(*_cast(module, args), **kwargs)
                    self.tracer.boundary(2 * index + 1)
                    return result
                if module in self.islands and now != self.cpu:
                    return self._across(module, original, args, kwargs, self.cpu)
                return original(*_cast(module, args), **kwargs)

            return forward

        return wrapper

    def _across(self, module: nn.Module, original: Callable[..., Any], args: Any, kwargs: Any, there: torch.device) -> Any:
        """A call on the other device; its result comes back."""
        here = self.thread.now
        self.thread.now = there
        try:
            result = original(*_cast(module, moved(args, there)), **moved(kwargs, there))
        finally:
            self.thread.now = here
        return result if here is None else moved(result, here)

    def _from_outside(self, module: nn.Module, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.thread.now = None
        came_from = device_of_first((args, kwargs))
        if self.plan.stage == "untraced":
            with self.settling:
                if self.plan.stage == "untraced":
                    self.tracer = Tracer(self.weights, self.cpu, gathers=True)
                    try:
                        with self.tracer:
                            self.tracer.boundary(2 * self.modules.index(module))
                            result = self._across(module, original, args, kwargs, self.cpu)
                        trace = self.tracer.trace
                    finally:
                        self.tracer = None
                    self._split(trace)
                    return result if came_from is None else moved(result, came_from)
        there = self.cpu if self._on_cpu(module) else self.device
        result = self._across(module, original, args, kwargs, there)
        return result if came_from is None else moved(result, came_from)

    def _on_cpu(self, module: nn.Module) -> bool:
        return any(module is inner for island in self.islands for inner in island.modules())

    @torch.no_grad()
    @torch.inference_mode(False)
    def _split(self, trace: Trace) -> None:
        """Decides what runs where, and moves the leading part to the device."""
        frames: dict[nn.Module, set[Weight]] = {}  # What a module's own code uses.
        order: dict[Weight, None] = {}
        for segment in trace.segments:
            if segment.calls:
                frame = frames.setdefault(self.modules[trace.modules[segment.calls[-1]]], set())
                frame.update(segment.weights)
                order.update(segment.weights)
        used = 0
        leading: set[Weight] = set()
        for weight in order:
            used += weight.nbytes
            if used > self.capacity:
                break
            leading.add(weight)
        rest = set(self.weights) - leading
        self.islands = self._islands(frames, rest)
        on_cpu = {inner for island in self.islands for inner in island.modules()}
        here = {id(t) for m in on_cpu for kind in KINDS for t in m.__dict__[kind].values() if t is not None}
        for weight in self.weights:
            weight.in_arena = None
            if weight not in rest:
                move_together([home.tensor for home in weight.homes], self.device)
        for tensors in self.kept:
            if not all(id(tensor) in here for tensor in tensors):
                move_together(tensors, self.device)
        for module in self.modules:
            if isinstance(module, nn.RNNBase) and module not in on_cpu:
                module.flatten_parameters()  # As it does whenever such a module is moved to a GPU.
        self._describe(order, rest)

    def _islands(self, frames: dict[nn.Module, set[Weight]], rest: set[Weight]) -> set[nn.Module]:
        """The outermost modules on the CPU. Adds to `rest` what they drag there: all that is in them, and what that is
        tied to."""
        held: dict[nn.Module, set[Weight]] = {module: set() for module in self.modules}
        for weight in self.weights:
            for home in weight.homes:
                for place in home.places:
                    held[place.module].add(weight)
        while True:
            on_cpu: set[nn.Module] = set()
            for module in self.modules:
                inner = list(module.modules())
                own = frames.get(module, set()) | held[module]
                subtree = set().union(*(held[part] for part in inner))
                if own & rest or (subtree and subtree <= rest):
                    on_cpu.update(inner)
            dragged = set().union(*(frames.get(m, set()) | held[m] for m in on_cpu), set()) - rest
            if not dragged:
                inner_ones = {part for module in on_cpu for part in module.modules() if part is not module}
                return on_cpu - inner_ones
            rest |= dragged

    def _describe(self, order: dict[Weight, None], rest: set[Weight]) -> None:
        plan = self.plan
        plan.stage = "settled"
        unused = [weight for weight in self.weights if weight not in order]
        plan.units = [PlannedUnit(w.name, w.nbytes, w not in rest, 0) for w in (*order, *unused)]
        plan.resident_bytes = sum(unit.nbytes for unit in plan.units if unit.resident)
        plan.host_bytes = sum(unit.nbytes for unit in plan.units if not unit.resident)
        plan.pinned = False
        plan.notes = [f"capacity {readable(self.capacity)}; {len(self.islands)} parts run on the CPU"]


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
