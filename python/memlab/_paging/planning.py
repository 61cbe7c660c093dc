"""From measured times to a placement: what of the device may be taken, and what the planner is told."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch

from memlab import _native
from memlab.plan import Plan, PlannedUnit
from memlab._paging.device_pool import OnChange, Placement
from memlab._paging.sizes import readable
from memlab._paging.units import Schedule, Unit, units_by_module

# What asking for one copy costs, so that many small units are not taken for free.
COPY_OVERHEAD_NS = 3_000
# Left to the forward beside its measured activations: workspaces, fragmentation.
SPARED = 256 << 20


@dataclass(frozen=True)
class Settings:
    """What the user asked for, checked."""

    device: torch.device
    max_layer_size: int = -1
    budget: int | str | None = None  # Bytes, "min", or None: as small as still hides the transfer.
    lookahead: int | None = None
    micro_batch: int | None = None
    on_change: OnChange = "error"
    bytes_per_second: float | None = None  # Paces the copies of the host backend.


def make_placement(schedule: Schedule, times: list[int], plan: Plan, settings: Settings, activations: int) -> Placement:
    """Asks the planner for residents and a ring. Changes `schedule`: units never used are left out if they do not fit.

    Raises ValueError that says how much is needed where the budget is too small.
    """
    units = [unit for unit in schedule.units if unit.traced]
    unused = [unit for unit in schedule.units if not unit.traced]
    capacity = max(_capacity(settings.device, activations), 0)
    budget, whose = None, "the device's memory"
    if isinstance(settings.budget, int):
        budget = settings.budget - plan.kept_bytes
        if budget < 0:
            raise ValueError(
                f"the budget of {readable(settings.budget)} is too small: buffers and what else is kept on the device take "
                f"{readable(plan.kept_bytes)} alone"
            )
        if budget < capacity:
            whose = f"the budget of {readable(settings.budget)}"
        budget = min(budget, capacity)
    allowed = capacity if budget is None else budget
    _check(units, schedule, allowed, whose)
    points = [(point.units, times[i] if times else 0) for i, point in enumerate(schedule.points)]
    found = _native.plan(
        [unit.nbytes for unit in units],
        points,
        [unit.must_stay for unit in units],
        plan.bytes_per_second or 1e9,
        COPY_OVERHEAD_NS,
        budget,
        settings.budget == "min",
        capacity,
        [several for several in units_by_module(units).values() if len(several) > 1],
    )
    placement = Placement(**found)
    fitting = [
        unit for unit in unused if _place_unused(unit, placement, allowed - placement.ring_bytes - placement.resident_bytes)
    ]
    schedule.units = units + fitting
    return placement


def _check(units: list[Unit], schedule: Schedule, allowed: int, whose: str) -> None:
    """Raises ValueError if what is needed at the same time does not fit, by its names."""
    staying = sum(unit.nbytes for unit in units if unit.must_stay)
    for point in schedule.points:
        together = [units[index] for index in point.units if not units[index].must_stay]
        needed = staying + sum(unit.nbytes for unit in together)
        if needed > allowed:
            verb = "are needed at once" if len(together) > 1 else "is needed as one"
            raise ValueError(
                f"{whose} is too small: {' and '.join(unit.name for unit in together)} {verb}, and with what "
                f"stays on the device that takes {readable(needed)}, of {readable(allowed)} there are for weights"
            )


def _place_unused(unit: Unit, placement: Placement, room: int) -> bool:
    """A place for what the traced forward did not use. Without one it is read where it is, over the bus."""
    if unit.nbytes <= placement.ring_bytes and not unit.must_stay:
        placement.places.append((0, unit.nbytes))
        placement.resident.append(False)
        return True
    if (placement.ring_bytes == 0 or unit.must_stay) and unit.nbytes <= room:
        placement.places.append(None)
        placement.resident.append(True)
        placement.resident_bytes += unit.nbytes
        return True
    return False


def _capacity(device: torch.device, activations: int) -> int:
    """Bytes that weights may take on the device, beside what a forward was seen to need."""
    if device.type == "cpu":
        with open("/proc/meminfo") as lines:
            available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
        return available * 3 // 4
    return free_memory(device) - activations * 11 // 10 - SPARED


def free_memory(device: torch.device) -> int:
    """Bytes that PyTorch may still allocate on a GPU: free on the card or cached, within the process's share of the card.

    The share is what ``torch.cuda.set_per_process_memory_fraction`` says.
    """
    free, total = torch.cuda.mem_get_info(device)
    reserved, allocated = torch.cuda.memory_reserved(device), torch.cuda.memory_allocated(device)
    if hasattr(torch.cuda, "get_per_process_memory_fraction"):  # From PyTorch 2.8 on.
        share = int(total * torch.cuda.get_per_process_memory_fraction(device))
        free = min(free, max(share - reserved, 0))
    return free + reserved - allocated


def describe(plan: Plan, schedule: Schedule, placement: Placement, times: list[int]) -> None:
    """Writes what was found into the plan that the user reads."""
    compute: Counter[int] = Counter()
    for point, nanoseconds in zip(schedule.points, times, strict=False):
        for unit in point.units[:1]:
            compute[unit] += nanoseconds
    plan.units = [
        PlannedUnit(unit.name, unit.nbytes, place is None, compute[index])
        for index, (unit, place) in enumerate(zip(schedule.units, placement.places, strict=True))
    ]
    plan.points = len(schedule.points)
    plan.resident_bytes = placement.resident_bytes
    plan.ring_bytes = placement.ring_bytes
    plan.streamed_bytes = placement.streamed_bytes
    plan.compute_ns = placement.compute_ns
    plan.floor_ns = placement.floor_ns
    plan.predicted_ns = placement.predicted_ns if times else 0
