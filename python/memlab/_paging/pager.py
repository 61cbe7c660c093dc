"""What runs during the forwards of a paged model.

The first forward is traced: eagerly, with each weight copied for the operation that uses it. From the trace come units,
points and a first plan; the next forward runs with them and is timed; the plan made of the times is final, and no
address changes any more.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from memlab import _native
from memlab._paging.device_transfer import exchanged, moved
from memlab._paging.module_patch import Takeover, modules_left_to_python
from memlab._paging.micro_batches import in_micro_batches, repeated_blocks
from memlab._paging.clock import Clock
from memlab._paging.tensor_swap import Exchange
from memlab._paging.saved_tensors import SavedWeights
from memlab.plan import TRAINED, WRITTEN, Plan
from memlab._paging.planning import Settings, describe, make_placement
from memlab._paging.device_pool import Residence
from memlab._paging.tracing import Segment, Trace, Tracer
from memlab._paging.training import refuse_training, warn_of_training
from memlab._paging.units import LayerOf, Point, Schedule, Unit, schedule_of, units_by_module, without
from memlab._paging.forward_context import Thread, TracedVisit, Unseen, Visit, unit_key
from memlab._paging.paged_tensor import Bytes, Weight, all_bytes, move_together, view_of

UNTRACED, MEASURING, SETTLED = "untraced", "measuring", "settled"


class Wrapped:
    """A module whose calls are seen."""

    def __init__(self, module: nn.Module, index: int) -> None:
        self.module = module
        self.enter_key = 2 * index
        self.exit_key = 2 * index + 1
        # Whether a point of the schedule lies at the beginning, at the end of a call. While tracing all do.
        self.at_enter = True
        self.at_exit = True
        self.needs: frozenset[int] = frozenset()  # Units with weights that the module itself holds.


class Pager:
    """A paged model: its weights, its plan, and the way each forward takes."""

    def __init__(self, model: nn.Module, weights: list[Weight], memory: Bytes, settings: Settings, plan: Plan) -> None:
        self.model = model
        self.weights = weights
        self.memory = memory
        self.settings = settings
        self.plan = plan
        self.blocks = repeated_blocks(model) if settings.micro_batch else set()
        self.exchange = Exchange(weights)
        self.takeover = Takeover(model, "paged", self.exchange.outside)
        device = settings.device
        index = None if device.type == "cpu" else device.index
        pipeline = _native.Pipeline(memory.arena, index, settings.bytes_per_second)
        homes = [home for weight in weights for home in weight.homes]
        self.residence = Residence(homes, memory, self.exchange, device, settings.on_change, pipeline)
        self.clock = Clock(device)
        self.thread = Thread()
        self.stage = UNTRACED
        self.unsettled = threading.RLock()
        self.counting = threading.Lock()
        self.inside: dict[int, Visit | TracedVisit] = {}  # By thread: those in a forward.
        self.kept: dict[int, _native.Session] = {}  # Units whose memory is looked at after their forward.
        self.kept_from_now_on: set[int] = set()
        self.keeping: dict[int, None] = {}  # Units that some thread keeps, or `kept` does.
        self.released = False
        self.needs_at: dict[int, set[int]] = {}  # By key: units of all its points.
        self.process = os.getpid()
        self.trace = Trace()
        self.seen: set[Wrapped] = set()  # Called from outside in this stage.
        self.times: list[int] = []
        self.schedule = Schedule()
        self.saved_weights: SavedWeights | None = None
        self.wrapped = [Wrapped(module, index) for index, module in enumerate(model.modules())]
        for weight in weights:
            for home in weight.homes:
                if weight.reachable_storage is not None:
                    home.resting = home.form(weight.reachable_storage)
                    self.exchange.set_inside(home, home.resting)
        for wrapped in self.wrapped:
            self.takeover.wrap(wrapped.module, self._wrapper(wrapped))
            if isinstance(wrapped.module, nn.RNNBase):
                # Models call it in their forwards. It would give the weights memory of PyTorch's own.
                self.takeover.silence(wrapped.module, "flatten_parameters")
        self.takeover.guard()
        self.takeover.mark(plan)
        plan.measure = lambda: pipeline.counters() | {"forward_ns": self.clock.last_ns()}
        plan.accept = self.residence.accept
        plan.release = self.release

    def _wrapper(self, wrapped: Wrapped) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
            if wrapped.module in self.blocks:
                original = in_micro_batches(wrapped.module, original, self.settings.micro_batch or 0, self._aside)

            def forward(*args: Any, **kwargs: Any) -> Any:
                visit = self.thread.visit
                if visit is None:
                    if self.released:  # Somebody has wrapped this wrapper, and calls it still.
                        return original(*args, **kwargs)
                    return self._from_outside(wrapped, original, args, kwargs)
                if wrapped.at_enter or not wrapped.needs <= visit.held:
                    visit.reach(wrapped.enter_key)
                result = original(*args, **kwargs)
                if wrapped.at_exit:
                    visit.reach(wrapped.exit_key)
                return result

            return forward

        return wrapper

    def _aside(self) -> AbstractContextManager[None] | None:
        """In the traced forward: a context in which nothing is traced. Weights that are not loaded have to be reachable."""
        unreachable = any(home.resting is None for home in self.residence.homes)
        if self.stage is not UNTRACED or unreachable or self.model.training:
            return None
        return self._untraced()

    @contextmanager
    def _untraced(self) -> Iterator[None]:
        visit, self.thread.visit = self.thread.visit, Unseen()
        try:
            with _disable_current_modes():
                yield
        finally:
            self.thread.visit = visit

    def _from_outside(self, wrapped: Wrapped, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call that comes from no other call of this model: a forward begins and ends with it."""
        if os.getpid() != self.process:
            raise RuntimeError(
                "this process was forked from the one that paged the model, and the threads that copy its weights are "
                "not here: memlab.unpage(model) in this process, or page it here"
            )
        if torch.jit.is_tracing():
            raise RuntimeError(
                "torch.jit.trace would take the addresses at which a paged model's weights are just now for constants: "
                "memlab.unpage(model) before tracing it"
            )
        if self.stage is not SETTLED:
            with self.unsettled:
                if self.stage is not SETTLED:
                    return self._unsettled_forward(wrapped, original, args, kwargs)
        return self._forward(wrapped, original, args, kwargs)

    def _unsettled_forward(self, wrapped: Wrapped, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A forward from which is learned; others wait."""
        if self.settings.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "a paged model plans in its first two forwards: run the model three times before capturing it in a CUDA "
                f"graph (stage: {self.stage})"
            )
        if wrapped in self.seen:
            # It begins anew: what came before was all of a forward.
            self._advance()
        result = self._forward(wrapped, original, args, kwargs)
        self.seen.add(wrapped)
        if self.stage is UNTRACED and self._all_seen():
            self._advance()
        elif self.stage is MEASURING:
            times = self.residence.pipeline.timings()
            self.times = [new or old for new, old in zip(times, self.times or times, strict=True)]
            if all(self.times):
                self._advance()
        return result

    def _forward(self, wrapped: Wrapped, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._keep_trained()
        device = self.settings.device
        if device.type != "cpu":
            args, kwargs = moved(args, device), moved(kwargs, device)
        # What is saved for backward depends on the placement, which may be another when the forward has begun.
        with self._in_forward(), nullcontext() if torch.is_inference_mode_enabled() else self._frozen():
            visit = self.thread.visit
            if visit is not None and (wrapped.at_enter or not wrapped.needs <= visit.held):
                visit.reach(wrapped.enter_key)
            # A weight that is returned as it is, is so from where it always is.
            return exchanged(original(*args, **kwargs), self.residence.returned)

    @contextmanager
    def _in_forward(self) -> Iterator[None]:
        tracer = None
        visit: Visit | TracedVisit
        if self.stage is UNTRACED:
            tracer = Tracer(self.weights, self.settings.device, gathers=self.memory.arena.pinned)
            visit = TracedVisit(tracer)
        else:
            if self.thread.session is None:
                self.thread.session = self.residence.pipeline.session()
            visit = Visit(self, self.thread.session)
        try:
            self._arrive(visit)
            self.thread.visit = visit
            with tracer or nullcontext(), self.clock:
                yield
            visit.ended = True
            if tracer is not None:
                self.trace.extend(tracer.finish())
        finally:
            self.thread.visit = None
            try:
                visit.leave()
            finally:
                self._depart(visit)

    def _arrive(self, visit: Visit | TracedVisit) -> None:
        thread = threading.get_ident()
        with self.counting:
            # A forward that Ctrl-C ended at its very end may not have departed.
            self.inside.pop(thread, None)
            if not self.inside:
                self.exchange.leave()
                self._keep_looked_at()
                self.residence.begin()
            self.inside[thread] = visit
            self.exchange.enter()

    def _depart(self, visit: Visit | TracedVisit) -> None:
        with self.counting:
            self.inside = {thread: other for thread, other in self.inside.items() if other is not visit}
            for unit, keeper in visit.keepers.items():
                # (After an exception it is its traceback that still looks.)
                if visit.ended and self.residence.looked_at(unit):
                    self.kept.setdefault(unit, keeper)
                else:
                    self.keeping.pop(unit, None)
                    keeper.leave(self.residence.stream())
            if not self.inside:
                self.exchange.leave()
                self.residence.end()

    def _keep_looked_at(self) -> None:
        """Units of which somebody keeps a view (the model returned it, or remembers it) stay on the device from now on."""
        for unit in [unit for unit in self.kept if not self.residence.looked_at(unit)]:
            self.keeping.pop(unit, None)
            self.kept.pop(unit).leave(self.residence.stream())
        if self.kept or self.kept_from_now_on:
            self._place(self.stage)

    def needed_at(self, key: int) -> set[int]:
        """The units that may be needed from a boundary on."""
        return self.needs_at.get(key, set())

    def _keep_trained(self) -> None:
        """What a forward trains lives on the device from then on, where an optimizer finds it."""
        if not torch.is_grad_enabled() or not any(home.tensor.requires_grad for home in self.residence.homes):
            return
        with self.counting:
            trained = [weight for weight in self.weights if weight.trains]
            if not trained:
                return  # Another thread has been here.
            others = bool(self.inside.keys() - {threading.get_ident()})
            refuse_training(self.model, trained, self.plan, self.settings, others)
            self.exchange.leave()  # (A forward that Ctrl-C ended may not have.)
            kept = self._give_up_placement()
            gone: set[Weight] = set()
            try:
                for weight in trained:
                    self._keep_one_trained(weight)
                    gone.add(weight)
            finally:
                # Without memory for all of them the model still is what it was, in part.
                self.weights = [weight for weight in self.weights if weight not in gone]
                self.saved_weights = None
                if self.stage is not UNTRACED:
                    self.schedule = without(self.schedule, gone, self._paged())
                    self._place(self.stage, [unit for unit in kept if unit.weights])
        if self.plan.kept[TRAINED] * 2 > self.plan.host_bytes:
            warn_of_training(self.plan)

    def _keep_one_trained(self, weight: Weight) -> None:
        tensors = [home.tensor for home in weight.homes]
        with torch.no_grad(), torch.inference_mode(False):
            move_together(tensors, self.settings.device)
        self.residence.forget(weight)
        self.takeover.kept.update(map(id, tensors))
        if weight in self.trace.written and self.stage is not UNTRACED:
            self.plan.kept[WRITTEN] -= weight.span
        self.plan.keep(TRAINED, weight.span)

    def _frozen(self) -> SavedWeights:
        if self.saved_weights is None:
            paged = [weight for weight in self.weights if weight not in self.trace.written]
            self.saved_weights = SavedWeights(paged, self.settings.device)
        return self.saved_weights

    def _all_seen(self) -> bool:
        used = {weight for segment in self.trace.segments for weight in segment.weights}
        return used.issuperset(self.weights)

    def _advance(self) -> None:
        """From what the last forwards have shown to the next stage."""
        if self.stage is UNTRACED:
            self._keep_written()
            budget = self.settings.budget if isinstance(self.settings.budget, int) else None
            self.schedule = schedule_of(self.trace, self._paged(), self._layer_of(), budget)
            self._place(MEASURING)
            self.residence.pipeline.timed(True)
        else:
            self.residence.pipeline.timed(False)
            self._place(SETTLED)
        self.seen.clear()

    def _paged(self) -> list[Weight]:
        """The weights that are copied: not those that operations write to, nor tables of which few rows are read."""
        trace = self.trace
        gathered = {
            weight
            for weight, read in trace.gathered.items()
            if weight not in trace.computed and weight.reachable_storage is not None and read * 4 < weight.nbytes
        }
        self.plan.gathered_bytes = sum(weight.span for weight in gathered)
        return [weight for weight in self.weights if weight not in gathered and weight not in trace.written]

    def _keep_written(self) -> None:
        """What the forward writes to lives on the device from now on, as it would without paging."""
        for weight in self.trace.written:
            storage = weight.in_arena
            if storage is None:
                continue
            with torch.no_grad(), torch.inference_mode(False):
                moved_storage = all_bytes(storage).to(self.settings.device, copy=True).untyped_storage()
                for home in weight.homes:
                    home.tensor.data = home.over(moved_storage)
                    home.resting = home.tensor
                    home.remember()
                    self.exchange.set_inside(home, home.tensor)
            self.plan.keep(WRITTEN, weight.span)

    def _layer_of(self) -> LayerOf | None:
        """Which calls are one unit: blocks if they are run in micro-batches, modules of at most `max_layer_size`."""
        most, modules = self.settings.max_layer_size, [w.module for w in self.wrapped]
        if not self.blocks and most < 0:
            return None
        sizes = [sum(p.numel() for p in module.parameters()) for module in modules]

        def layer_of(segment: Segment) -> int | None:
            for call in segment.calls:
                module = self.trace.modules[call]
                if modules[module] in self.blocks or 0 <= sizes[module] <= most:
                    return call
            return segment.calls[-1] if segment.calls and most >= 0 else None

        return layer_of

    def _give_up_placement(self) -> list[Unit]:
        """Gives the device memory back. Returns the units that stay in the next placement, as somebody looks at them."""
        for keeper in self.kept.values():
            keeper.leave(self.residence.stream())
        kept = [self.schedule.units[unit] for unit in self.kept_from_now_on | self.kept.keys()]
        for unit in kept:
            unit.must_stay = True
        self.kept.clear()
        self.kept_from_now_on.clear()
        self.keeping.clear()
        self.residence.clear()
        return kept

    def _place(self, stage: str, looked_at: list[Unit] | None = None) -> None:
        """Plans, and takes device memory for the plan. `looked_at`: units that stay if there is room for it."""
        residence, schedule = self.residence, self.schedule
        kept = self._give_up_placement() + (looked_at or [])
        if not self.plan.bytes_per_second:
            largest = max((unit.nbytes for unit in schedule.units), default=0)
            self.plan.bytes_per_second = residence.bandwidth(largest) if largest else 0.0
        placing = (schedule, self.times, self.plan, self.settings, self.trace.activations)
        try:
            placement = make_placement(*placing)
        except ValueError:
            if not kept:
                raise
            # There is no room for them to stay. Whoever looks at them looks at the memory of the last placement.
            for unit in kept:
                unit.must_stay = False
            placement = make_placement(*placing)
        units, places = schedule.units, placement.places
        points = schedule.points if stage is MEASURING else _needed(schedule.points, places)
        fallback = self._fallback()
        residence.place(units, placement, points, fallback, self.settings.lookahead)
        scheduled = {point.key for point in points}
        foreseen = {point.key for point in schedule.points}  # Another placement may have points there.
        self.needs_at = {key: set(needed) for key, needed in fallback.items()}
        for point in points:
            self.needs_at.setdefault(point.key, set()).update(point.units)
        for wrapped in self.wrapped:
            wrapped.at_enter = wrapped.enter_key in scheduled
            wrapped.at_exit = wrapped.exit_key in scheduled
            wrapped.needs = frozenset(u for u in fallback.get(wrapped.enter_key, ()) if places[u] is not None)
            # Modules without weights need no watching, unless a point is there, or they are called from outside.
            holds = any(module._parameters or module._buffers for module in wrapped.module.modules())
            if not (holds or wrapped.enter_key in foreseen or wrapped.exit_key in foreseen):
                self.takeover.unwrap(wrapped.module)
        self.saved_weights = None
        self.stage = self.plan.stage = stage
        describe(self.plan, schedule, placement, self.times)

    def _fallback(self) -> dict[int, list[int]]:
        """What is loaded for a key that the schedule lacks: a module's own units, or the unit that the key stands for."""
        number = {wrapped.module: wrapped.enter_key for wrapped in self.wrapped}
        of_modules = {number[module]: units for module, units in units_by_module(self.schedule.units).items()}
        return {unit_key(unit): [unit] for unit in range(len(self.schedule.units))} | of_modules

    def release(self) -> None:
        """Everything off the model again; its tensors stay views of the arena, which lives as long as they do."""
        # (A forward of this thread that Ctrl-C ended may not have departed.)
        if self.thread.visit is not None or self.inside.keys() - {threading.get_ident()}:
            raise RuntimeError("a forward of this model is under way: memlab.unpage(model) when it has ended")
        self.released = True
        self.residence.clear()
        self.exchange.release()
        self.takeover.release()
        for weight in self.weights:
            if weight.apart:
                for home in weight.homes:
                    home.tensor.data = view_of(
                        self.memory.of_home(home), home.tensor.dtype, 0, home.tensor.shape, home.tensor.stride()
                    )
            weight.let_go()
        self.memory.arena.unpin()


def _needed(points: list[Point], places: list[tuple[int, int] | None]) -> list[Point]:
    """The points at which something is loaded or given up: where only residents follow residents there is nothing to do."""
    needed: list[Point] = []
    for point in points:
        streamed = [unit for unit in point.units if places[unit] is not None]
        if streamed or (needed and needed[-1].units):
            needed.append(Point(point.key, streamed))
    return needed


# A compiled model calls all this between what is compiled of it.
_PARTS = "clock tensor_swap saved_tensors pager planning device_pool training units forward_context paged_tensor"
for _part in _PARTS.split():
    modules_left_to_python(sys.modules[f"memlab._paging.{_part}"])
