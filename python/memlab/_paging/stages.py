"""The stages of a paged model, tracing, measuring and settled: creates the next placement from the last forwards.

tracing ──trace──▶ units and points ──▶ measuring ──times──▶ settled
                                        first placement      final placement: addresses no longer change

Without a budget, two settled forwards check the measurement, and memlab plans again in two cases. Either the first of them
computes for far less time, because the measured one was slow by chance. Or the host takes longer for both than predicted
for the device, because copies then cost time however well they are hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from memlab._paging.boundaries import WrappedModule, unit_key
from memlab._paging.device_pool import DevicePool
from memlab._paging.module_patch import ModulePatch
from memlab._paging.paged_tensor import Weight
from memlab._paging.plan_state import TRAINED, WRITTEN, PlanState, Stage
from memlab._paging.planning import HOST_COPY_NS, describe, make_placement
from memlab._paging.saved_tensors import SavedTensors
from memlab._paging.settings import Settings
from memlab._paging.tensor_memory import all_bytes, move_together
from memlab._paging.torch_private import has_tensors
from memlab._paging.tracing import Segment, Trace
from memlab._paging.units import LayerOf, Point, Schedule, Unit, largest_unit, schedule_of, units_by_module, without
from memlab._paging.viewed_units import ViewedUnits

# The measured forward was slow by chance if the next one computes for a smaller share of its time.
_FAR_LESS = 0.75
# Fraction by which a forward may be slower to save memory.
_AS_GOOD = 0.02


class Stages:
    """Results of forwards (trace, times), and the schedule and placement made of them."""

    def __init__(
        self,
        weights: list[Weight],
        wrapped: list[WrappedModule],
        blocks: set[nn.Module],
        settings: Settings,
        state: PlanState,
        pool: DevicePool,
        patch: ModulePatch,
        unwraps: bool,
    ) -> None:
        self.weights = weights
        self.wrapped = wrapped
        self.blocks = blocks  # Modules that run in micro-batches.
        self.settings = settings
        self.state = state
        self.pool = pool
        self.patch = patch
        self.unwraps = unwraps  # Modules that need no watching get their own `forward` back.
        self.viewed = ViewedUnits(pool)
        self.trace = Trace()
        self.times: list[int] = []  # Per point: nanoseconds of compute.
        self.host_ns = 0  # Host time of a forward without copies, if the device waits for it.
        self._host_seen: list[int] = []  # The same, from each check: a single one may be slow by chance.
        self.checks = 0  # Number of the next forwards that check the measurement.
        self.needed_points: list[int] = []  # Indices of the schedule's points that the placement needs.
        self.schedule = Schedule()
        self._saved_tensors: SavedTensors | None = None

    @property
    def stage(self) -> Stage:
        return self.state.stage

    def advance(self) -> None:
        """Starts the next stage with the trace or the times of the last forwards."""
        if self.stage is Stage.TRACING:
            self._make_written_resident()
            paged = self._paged()
            largest = largest_unit(self.settings.budget, sum(weight.padded_nbytes for weight in paged))
            self.schedule = schedule_of(self.trace, paged, self._layer_of(), largest)
            self._place(Stage.MEASURING)
            self.pool.pipeline.timed(True)
        else:
            self._place(Stage.SETTLED)
            # Other budgets are used up, however long forwards take.
            self.checks = 2 if self.settings.budget is None else 0
            self.pool.pipeline.timed(self.checks > 0)

    def all_weights_used(self) -> bool:
        """Returns True if the traced forwards have used all weights."""
        used = {weight for segment in self.trace.segments for weight in segment.weights}
        return used.issuperset(self.weights)

    def note_times(self) -> bool:
        """Reads the times of a measured forward. Returns True if all points have one."""
        times = self.pool.pipeline.timings()
        self.times = [new or old for new, old in zip(times, self.times or times, strict=True)]
        return all(self.times)

    def next_check(self) -> int:
        """Counts down at the start of a checking forward. Returns the number of checks that follow."""
        self.checks -= 1
        return self.checks

    def check(self, remaining: int, host_ns: int, copies: int) -> None:
        """Places again, after a checking forward, if the plan was made for other times. No forward may be in progress.

        `remaining`: number of checks that follow. `host_ns`: the host's time. `copies`: number of units copied.
        """
        if not self.needed_points or self.pool.pipeline.captured():
            return  # All units stay; or a graph has their addresses.
        before = self.times, self.host_ns
        self._host_seen.append(max(host_ns - copies * HOST_COPY_NS, 1))
        if remaining > 0:
            self.times = self._times_now()
        elif self.settings.device.type == "cuda" and self.state.pinned and len(self._host_seen) > 1:
            self.host_ns = self._host_now(copies)
        if (self.times, self.host_ns) == before:
            return
        try:
            self._place(Stage.SETTLED)
        except (ValueError, RuntimeError):
            # The program has taken the memory that the new plan needs. The previous plan still fits.
            self.times, self.host_ns = before
            self._place(Stage.SETTLED)

    def _times_now(self) -> list[int]:
        """Returns the times of points, reduced if the measured forward was slow by chance."""
        times = self.pool.pipeline.timings()
        ends = [*self.needed_points[1:], len(self.times)]
        measured = sum(sum(self.times[first:end]) for first, end in zip(self.needed_points, ends, strict=True))
        if not all(times) or sum(times) >= _FAR_LESS * measured:
            return self.times
        return [max(1, time * sum(times) // measured) for time in self.times]

    def _host_now(self, copies: int) -> int:
        """Returns the host time of a forward without copies; 0 if no forward waits for it, or copies are a small part."""
        host = min(self._host_seen)
        copying = copies * HOST_COPY_NS
        is_host_bound = host + copying > self.state.predicted_ns and copying > _AS_GOOD * host
        return host if is_host_bound else 0

    def saved_tensors(self) -> SavedTensors:
        """Returns the hooks for tensors that autograd saves in a forward. They depend on the placement."""
        if self._saved_tensors is None:
            paged = [weight for weight in self.weights if weight not in self.trace.written]
            self._saved_tensors = SavedTensors(paged, self.settings.device)
        return self._saved_tensors

    def make_viewed_resident(self) -> None:
        """Makes units with live views resident. Call it before a forward, with no other in progress."""
        if self.viewed.any_left():
            self._place(self.stage)

    def make_trained_resident(self, trained: list[Weight]) -> None:
        """Makes weights resident, so that an optimizer finds them on the device. Call it outside of forwards."""
        viewed = self.give_up_placement()
        gone: set[Weight] = set()
        try:
            for weight in trained:
                self._make_one_resident(weight)
                gone.add(weight)
        finally:
            # If memory runs out, weights that were moved stay moved, and the others are paged as before.
            self.weights = [weight for weight in self.weights if weight not in gone]
            self._saved_tensors = None
            if self.stage is not Stage.TRACING:
                self.schedule = without(self.schedule, gone, self._paged())
                self._place(self.stage, [unit for unit in viewed if unit.weights])

    def _make_one_resident(self, weight: Weight) -> None:
        tensors = [paged.tensor for paged in weight.tensors]
        self._move_together(tensors)
        self.pool.forget(weight)
        self.patch.residents.update(map(id, tensors))
        if weight in self.trace.written and self.stage is not Stage.TRACING:
            self.state.resident_tensors[WRITTEN] -= weight.padded_nbytes
        self.state.add_resident(TRAINED, weight.padded_nbytes)

    @torch.no_grad()
    @torch.inference_mode(False)
    def _move_together(self, tensors: list[Tensor]) -> None:
        move_together(tensors, self.settings.device)

    def _make_written_resident(self) -> None:
        """Makes weights resident that the traced forwards have written to."""
        for weight in self.trace.written:
            storage = weight.arena_storage
            if storage is None:
                continue
            with torch.no_grad(), torch.inference_mode(False):
                moved = all_bytes(storage).to(self.settings.device, copy=True).untyped_storage()
                for paged in weight.tensors:
                    paged.tensor.data = paged.view_over(moved)
                    paged.unloaded = paged.tensor
                    paged.mark_known()
                    self.pool.swap.put_inside(paged, paged.tensor)
            self.state.add_resident(WRITTEN, weight.padded_nbytes)

    def _paged(self) -> list[Weight]:
        """Returns the weights that are copied: no weights that operations write to, and no tables with few rows read."""
        trace = self.trace
        gathered = {
            weight
            for weight, read in trace.gathered.items()
            if weight not in trace.computed and weight.mapped_storage is not None and read * 4 < weight.nbytes
        }
        self.state.gathered_bytes = sum(weight.padded_nbytes for weight in gathered)
        return [weight for weight in self.weights if weight not in gathered and weight not in trace.written]

    def _layer_of(self) -> LayerOf | None:
        """Returns a function that finds the call whose segments form one unit; None without such calls.

        They are calls of blocks that run in micro-batches, and of modules with at most `max_layer_size` parameters.
        """
        most, modules = self.settings.max_layer_size, [wrapped.module for wrapped in self.wrapped]
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

    def give_up_placement(self) -> list[Unit]:
        """Frees the device memory. Returns the units that the next placement makes resident because they have views."""
        viewed = [self.schedule.units[unit] for unit in self.viewed.clear()]
        for unit in viewed:
            unit.must_be_resident = True
        self.pool.clear()
        return viewed

    def _place(self, stage: Stage, viewed: list[Unit] | None = None) -> None:
        """Plans, and allocates device memory for the plan. `viewed`: units that are resident if they fit."""
        pool, schedule = self.pool, self.schedule
        viewed = self.give_up_placement() + (viewed or [])
        if not self.state.bytes_per_second:
            largest = max((unit.nbytes for unit in schedule.units), default=0)
            self.state.bytes_per_second = pool.bandwidth(largest) if largest else 0.0
        known = (schedule, self.times, self.host_ns, self.state, self.settings, self.trace.activations)
        try:
            placement = make_placement(*known)
        except ValueError:
            if not viewed:
                raise
            # They do not fit. Their views use the last placement's memory, which PyTorch keeps for them.
            for unit in viewed:
                unit.must_be_resident = False
            placement = make_placement(*known)
        points = schedule.points
        if stage is not Stage.MEASURING:
            points, self.needed_points = _needed(schedule.points, placement.places)
        fallback = self._fallback()
        pool.place(schedule.units, placement, points, fallback, self.settings.lookahead)
        self._watch_modules(points, fallback, placement.places)
        self._saved_tensors = None
        self.state.stage = stage
        describe(self.state, schedule, placement, self.times)

    def _watch_modules(
        self, points: list[Point], fallback: dict[int, list[int]], places: list[tuple[int, int] | None]
    ) -> None:
        """Makes modules report the boundaries that are points. Modules that need no watching get their own forward."""
        scheduled = {point.key for point in points}
        foreseen = {point.key for point in self.schedule.points}  # Another placement may have points there.
        for wrapped in self.wrapped:
            needs = [unit for unit in fallback.get(wrapped.enter_key, ()) if places[unit] is not None]
            wrapped.watch(wrapped.enter_key in scheduled, wrapped.exit_key in scheduled, needs)
            if not self.unwraps or wrapped.method != "forward":
                continue
            holds_tensors = any(has_tensors(module) for module in wrapped.module.modules())
            if not (holds_tensors or wrapped.enter_key in foreseen or wrapped.exit_key in foreseen):
                self.patch.unwrap(wrapped.module)

    def _fallback(self) -> dict[int, list[int]]:
        """Returns the units to load for a key outside the schedule: a module's own units, or the unit of a `unit_key`."""
        units = units_by_module(self.schedule.units)
        of_modules = {wrapped.enter_key: units[wrapped.module] for wrapped in self.wrapped if wrapped.module in units}
        return {unit_key(unit): [unit] for unit in range(len(self.schedule.units))} | of_modules


def _needed(points: list[Point], places: list[tuple[int, int] | None]) -> tuple[list[Point], list[int]]:
    """Returns the points at which a unit is loaded or released, and their indices. Residents need none."""
    needed: list[Point] = []
    indexes = []
    for index, point in enumerate(points):
        streamed = [unit for unit in point.units if places[unit] is not None]
        if streamed or (needed and needed[-1].units):
            needed.append(Point(point.key, streamed))
            indexes.append(index)
    return needed, indexes
