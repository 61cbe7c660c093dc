"""From measured times to a placement: calls the planner and interprets its answer."""

from __future__ import annotations

from collections import Counter

from memlab import _native
from memlab._paging.device_memory import capacity
from memlab._paging.placement import LEAST_PIECE, Placement
from memlab._paging.plan_state import PlannedUnit, PlanState
from memlab._paging.settings import Settings
from memlab._paging.sizes import readable
from memlab._paging.units import Point, Schedule, Unit, units_by_module

# Bus time of each copy, so that many small units are not planned as free.
COPY_OVERHEAD_NS = 3_000
# Host time of each copy, including the slower launches during it: 100 to 220 us with an H100.
HOST_COPY_NS = 150_000


def make_placement(
    schedule: Schedule, times: list[int], host_ns: int, plan: PlanState, settings: Settings, activations: int
) -> Placement:
    """Plans residents and a ring. Drops units from `schedule` that the trace did not use and that do not fit.

    Args:
        times: per point, nanoseconds of compute on the device.
        host_ns: host time of a forward without copies, if the device waits for it; 0 otherwise.
        activations: bytes.

    Raises: ValueError if the budget is too small. It names the required bytes.
    """
    units = [unit for unit in schedule.units if unit.traced]
    unused = [unit for unit in schedule.units if not unit.traced]
    bandwidth = plan.bytes_per_second or 1e9
    available = _available(units, schedule, bandwidth, settings, activations)
    budget, whose = None, "the device's memory"
    if isinstance(settings.budget, int):
        budget = settings.budget - plan.resident_tensor_bytes
        if budget < 0:
            raise ValueError(
                f"the budget of {readable(settings.budget)} is too small: what is kept on the device all the time, such "
                f"as buffers, takes {readable(plan.resident_tensor_bytes)}"
            )
        if budget < available:
            whose = f"the budget of {readable(settings.budget)}"
        budget = min(budget, available)
    allowed = available if budget is None else budget
    _check(units, schedule, allowed, whose)
    placement = _planned(units, schedule, times, host_ns, bandwidth, budget, settings.budget == "min", available)
    schedule.units = units
    of_modules = units_by_module(units)
    for unit in unused:
        modules = {entry.module for weight in unit.weights for paged in weight.tensors for entry in paged.entries}
        # Units of one module are loaded together when it is called.
        others = {index for module in modules for index in of_modules.get(module, ())}
        beside = [place for index in others if (place := placement.places[index]) is not None]
        room = allowed - placement.ring_bytes - placement.resident_bytes
        if _place_unused(unit, placement, beside, room):
            for module in modules:
                of_modules.setdefault(module, []).append(len(schedule.units))
            schedule.units.append(unit)
    return placement


def _planned(
    units: list[Unit],
    schedule: Schedule,
    times: list[int],
    host_ns: int,
    bytes_per_second: float,
    budget: int | None,
    minimum: bool,
    available: int,
) -> Placement:
    """Returns the planner's placement of units. Raises: ValueError if they do not fit."""
    found = _native.plan(
        [unit.nbytes for unit in units],
        [(point.units, times[i] if times else 0) for i, point in enumerate(schedule.points)],
        [unit.must_be_resident for unit in units],
        bytes_per_second,
        COPY_OVERHEAD_NS,
        LEAST_PIECE,
        budget,
        minimum,
        available,
        [several for several in units_by_module(units).values() if len(several) > 1],
        host_ns=host_ns,
        host_copy_ns=HOST_COPY_NS if host_ns else 0,
    )
    return Placement(**found)


def _available(units: list[Unit], schedule: Schedule, bytes_per_second: float, settings: Settings, activations: int) -> int:
    """Returns the bytes that weights may take. Neighbouring units do not share a place only to keep the reserve free."""
    available = capacity(settings.device, activations)
    largest = max((_bytes_of(_copied(units, point)) for point in schedule.points), default=0)
    if _bytes_of(_staying(units)) + 2 * largest <= available:
        return available
    everything = capacity(settings.device, activations, with_reserve=False)
    try:
        least = _planned(units, schedule, [], 0, bytes_per_second, None, True, everything)
    except ValueError:
        return everything  # Not enough: the planning that follows raises with the required bytes.
    return max(available, least.ring_bytes + least.resident_bytes)


def _staying(units: list[Unit]) -> list[Unit]:
    return [unit for unit in units if unit.must_be_resident]


def _copied(units: list[Unit], point: Point) -> list[Unit]:
    """Returns the units of a point that need not stay on the device."""
    return [units[index] for index in point.units if not units[index].must_be_resident]


def _bytes_of(units: list[Unit]) -> int:
    return sum(unit.nbytes for unit in units)


def _check(units: list[Unit], schedule: Schedule, allowed: int, whose: str) -> None:
    """Raises ValueError that names the units, if units needed at the same time do not fit."""
    staying = _bytes_of(_staying(units))
    for point in schedule.points:
        together = _copied(units, point)
        needed = staying + _bytes_of(together)
        if needed > allowed:
            verb = "are needed at once" if len(together) > 1 else "is copied as one"
            raise ValueError(
                f"{whose} is too small: {' and '.join(unit.name for unit in together)} {verb}. With what stays on the "
                f"device that takes {readable(needed)}, and weights may take {readable(allowed)}"
            )


def _place_unused(unit: Unit, placement: Placement, beside: list[tuple[int, int]], room: int) -> bool:
    """Places a unit that the traced forward did not use, if it fits. Otherwise it is read over the bus.

    `beside`: the places that it must not overlap.
    """
    starts = [] if unit.must_be_resident else [0, *(offset + nbytes for offset, nbytes in beside)]
    for start in starts:
        end = start + unit.nbytes
        if end <= placement.ring_bytes and all(end <= offset or offset + nbytes <= start for offset, nbytes in beside):
            placement.places.append((start, unit.nbytes))
            placement.resident.append(False)
            return True
    if (not placement.ring_bytes or unit.must_be_resident or beside) and unit.nbytes <= room:
        placement.places.append(None)
        placement.resident.append(True)
        placement.resident_bytes += unit.nbytes
        return True
    return False


def describe(plan: PlanState, schedule: Schedule, placement: Placement, times: list[int]) -> None:
    """Writes the placement into the plan."""
    compute: Counter[int] = Counter()
    for point, nanoseconds in zip(schedule.points, times, strict=False):
        for unit in point.units[:1]:
            compute[unit] += nanoseconds
    plan.units = [
        PlannedUnit(unit.name, unit.nbytes, place is None, compute[index])
        for index, (unit, place) in enumerate(zip(schedule.units, placement.places, strict=True))
    ]
    plan.resident_unit_bytes = placement.resident_bytes
    plan.ring_bytes = placement.ring_bytes
    plan.streamed_bytes = placement.streamed_bytes
    plan.compute_ns = placement.compute_ns
    plan.floor_ns = placement.floor_ns
    plan.predicted_ns = placement.predicted_ns if times else 0
