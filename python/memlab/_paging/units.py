"""From a trace to a schedule: units, which are copied together, and points, between which they must be loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from memlab._paging.paged_tensor import Weight
from memlab._paging.tracing import Segment, Trace

# Neighbours are copied together, because queueing a small copy costs more than the copy. The limit is the smaller size with
# a budget, and the larger one without. Their copies take 0.3 and 1.2 ms on a PCIe 5 bus, and queueing one takes some 0.03.
SMALL_UNIT, LARGE_UNIT = 16 << 20, 64 << 20
# Number of units that is enough to hide the copies of a model behind its computation.
ENOUGH_UNITS = 48
# A weight used in several places is a unit of one weight. A smaller one is resident, because it would be copied often.
SMALL_SHARED = 1 << 20


@dataclass(eq=False)
class Unit:
    """Weights that are copied together, into one place."""

    weights: list[Weight]
    must_be_resident: bool = False
    traced: bool = True
    name: str = ""

    @property
    def nbytes(self) -> int:
        return sum(weight.padded_nbytes for weight in self.weights)


@dataclass
class Point:
    """A module boundary where the set of needed units changes."""

    key: int  # Of the boundary; see `WrappedModule`.
    units: list[int]  # Units needed from it to the next point.


# Returns the call whose segments form one unit with this one, or None.
LayerOf = Callable[[Segment], int | None]


@dataclass
class Schedule:
    """A forward as the pipeline sees it."""

    units: list[Unit] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)


def units_by_module(units: list[Unit]) -> dict[nn.Module, list[int]]:
    """Returns the units of the tensors that each module holds itself. They are loaded for a call outside the schedule."""
    needed: dict[nn.Module, dict[int, None]] = {}
    for index, unit in enumerate(units):
        for weight in unit.weights:
            for paged in weight.tensors:
                for entry in paged.entries:
                    needed.setdefault(entry.module, {})[index] = None
    return {module: list(several) for module, several in needed.items()}


def largest_unit(budget: int | str | None, nbytes: int) -> int:
    """Returns the size up to which neighbours are copied together, for weights of `nbytes` in all.

    `budget`: bytes, "min", or None.

    A unit's cost on the host does not depend on its size. Units are therefore large, but small enough for a ring to hold
    several and to use up a budget.
    """
    if budget is None:
        return min(max(nbytes // ENOUGH_UNITS, SMALL_UNIT), LARGE_UNIT)
    return SMALL_UNIT if isinstance(budget, str) else min(SMALL_UNIT, budget // 4)


def schedule_of(trace: Trace, paged: list[Weight], layer_of: LayerOf | None, largest: int) -> Schedule:
    """Returns units and points of a traced forward.

    `paged` are the weights that are copied. `layer_of` returns the call whose segments are one unit (``max_layer_size``,
    ``micro_batch``). Where it returns None, neighbours form a unit of up to `largest` bytes.
    """
    known = set(paged)
    segments = [(segment, [w for w in segment.weights if w in known]) for segment in trace.segments]
    groups = _groups(segments, layer_of, largest)
    seen_in = Counter(weight for group in groups for weight in {w: None for _, ws in group for w in ws})

    schedule = Schedule()
    number: dict[Weight, int] = {}
    for group in groups:
        own = [w for w in dict.fromkeys(w for _, ws in group for w in ws) if seen_in[w] == 1]
        if own:
            own.sort(key=lambda weight: weight.offset)
            number.update(dict.fromkeys(own, len(schedule.units)))
            schedule.units.append(Unit(own))
        for weight in dict.fromkeys(w for _, ws in group for w in ws):
            if weight not in number:
                number[weight] = len(schedule.units)
                schedule.units.append(Unit([weight], must_be_resident=weight.padded_nbytes < SMALL_SHARED))
        schedule.points.extend(_points(group, number))
    for weight in trace.escaping & number.keys():
        schedule.units[number[weight]].must_be_resident = True
    _add_unused(schedule, paged, number)
    _name(schedule.units, paged)
    return schedule


def without(schedule: Schedule, gone: set[Weight], paged: list[Weight]) -> Schedule:
    """Returns the schedule without weights that are no longer copied.

    Points stay, so that the times measured at them stay valid.
    """
    number: dict[int, int] = {}
    units: list[Unit] = []
    for index, unit in enumerate(schedule.units):
        unit.weights = [weight for weight in unit.weights if weight not in gone]
        if unit.weights:
            number[index] = len(units)
            units.append(unit)
    _name(units, paged)
    points = [Point(point.key, [number[unit] for unit in point.units if unit in number]) for point in schedule.points]
    return Schedule(units, points)


def _groups(
    segments: list[tuple[Segment, list[Weight]]], layer_of: LayerOf | None, largest: int
) -> list[list[tuple[Segment, list[Weight]]]]:
    """Groups neighbouring segments that form one unit. Segments without weights go with the one before."""
    groups: list[list[tuple[Segment, list[Weight]]]] = []
    nbytes, layer = 0, None
    for segment, weights in segments:
        if not weights:
            if groups:
                groups[-1].append((segment, weights))
            continue
        more = sum(weight.padded_nbytes for weight in weights)
        mine = layer_of(segment) if layer_of else None
        together = mine == layer and (mine is not None or nbytes + more <= largest)
        if groups and together:
            groups[-1].append((segment, weights))
            nbytes += more
        else:
            groups.append([(segment, weights)])
            nbytes, layer = more, mine
    return groups


def _points(group: list[tuple[Segment, list[Weight]]], number: dict[Weight, int]) -> list[Point]:
    """Returns a group's points: its start, and every place where a shared weight starts or stops being needed."""
    # A unit that only this group uses is held from its first use to its last.
    uses = Counter(unit for _, weights in group for unit in {number[w] for w in weights})
    last = {number[w]: index for index, (_, weights) in enumerate(group) for w in weights}
    first: dict[int, int] = {}
    for index, (_, weights) in enumerate(group):
        for weight in weights:
            first.setdefault(number[weight], index)
    points: list[Point] = []
    for index, (segment, _) in enumerate(group):
        units = sorted(unit for unit in uses if first[unit] <= index <= last[unit])
        if not points or (units and points[-1].units != units):
            points.append(Point(segment.key, units))
    return points


def _add_unused(schedule: Schedule, paged: list[Weight], number: dict[Weight, int]) -> None:
    """Adds units for unused weights (of a branch not taken): one per module, loaded when it is called."""
    by_module: dict[int, list[Weight]] = {}
    for weight in paged:
        if weight not in number:
            by_module.setdefault(id(weight.tensors[0].entries[0].module), []).append(weight)
    for weights in by_module.values():
        schedule.units.append(Unit(weights, traced=False))


def _name(units: list[Unit], paged: list[Weight]) -> None:
    """Names a unit after the module that holds its weights, else after its first and last weight."""
    under = Counter(module for weight in paged for module in _modules(weight))
    for unit in units:
        first, last = unit.weights[0], unit.weights[-1]
        unit.name = first.name if first is last else f"{first.name} … {last.name}"
        shared = set(_modules(first)).intersection(*(_modules(weight) for weight in unit.weights))
        whole = [module for module in _modules(first) if module in shared and under[module] == len(unit.weights)]
        if len(unit.weights) > 1 and whole:
            unit.name = whole[0]


def _modules(weight: Weight) -> list[str]:
    """Returns the names of the modules around a weight, outermost first."""
    parts = weight.name.split(".")[:-1]
    return [".".join(parts[: index + 1]) for index in range(len(parts))]
