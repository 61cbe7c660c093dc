"""Cuts a surveyed model into stretches, one for each device: their weights, their traces, and the stretch of each module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from memlab._paging.paged_tensor import ModuleEntry, PagedTensor, Weight
from memlab._paging.split import DeviceCapacity, Piece, split
from memlab._paging.survey import Survey
from memlab._paging.tracing import Segment, Trace


@dataclass
class Stretch:
    """The part of a model that runs on one device."""

    device: int  # Index into the devices.
    first: int  # Its first position in the survey.
    end: int
    weights: list[Weight]
    trace: Trace


@dataclass(frozen=True)
class Home:
    """Place of a module: the stretch in which its calls begin, and a flag that they also end there."""

    stretch: int
    whole: bool


@dataclass
class Cut:
    """A model in stretches, in their order."""

    stretches: list[Stretch]
    homes: list[Home | None]  # Per module; None: has no weights, and runs where it is called.


def gathered_only(survey: Survey, weight: Weight) -> bool:
    """Returns True if a weight is a table of which few rows are read, over the bus."""
    read = survey.trace.gathered.get(weight)
    return read is not None and weight not in survey.trace.computed and read * 4 < weight.nbytes


def pieces_of(survey: Survey, borders: list[int], operations_per_second: float) -> list[Piece]:
    """Returns the pieces between the borders: the weights that each copies, and its compute time."""
    ends = [*borders, len(survey.trace.segments)]
    pieces = []
    for first, end in zip([0, *borders], ends, strict=True):
        used = {weight for segment in survey.trace.segments[first:end] for weight in segment.weights}
        operations = sum(survey.operations[position] for position in range(first, end))
        sizes = {w: w.padded_nbytes for w in used if not gathered_only(survey, w)}
        pieces.append(Piece(sizes, operations / operations_per_second * 1e9))
    return pieces


def cut(survey: Survey, weights: list[Weight], capacities: Sequence[DeviceCapacity], operations_per_second: float) -> Cut:
    """Cuts a model where its slowest device is fastest. Devices without work get no stretch."""
    borders = survey.borders()
    starts = [0, *borders, len(survey.trace.segments)]
    firsts = [starts[piece] for piece in split(pieces_of(survey, borders, operations_per_second), capacities)]
    ends = [*firsts[1:], len(survey.trace.segments)]
    spans = [(device, first, end) for device, (first, end) in enumerate(zip(firsts, ends, strict=True)) if first < end]
    stretch_of = {position: index for index, (_, first, end) in enumerate(spans) for position in range(first, end)}
    holders = _stretch_of_holders(survey, weights, stretch_of)
    copies = [_for_stretches(weight, holders) for weight in weights]
    stretches = []
    for index, (device, first, end) in enumerate(spans):
        own = {weight: parts[index] for weight, parts in zip(weights, copies, strict=True) if index in parts}
        trace = _trace_of(survey, first, end, own)
        stretches.append(Stretch(device, first, end, list(own.values()), trace))
    return Cut(stretches, _homes(survey, stretch_of, holders))


def _stretch_of_holders(survey: Survey, weights: list[Weight], stretch_of: dict[int, int]) -> dict[nn.Module, int]:
    """Returns the stretch that contains each module's own weights.

    Weights that the survey did not use go with those before them.
    """
    found = {module: stretch_of[first] for module, (first, _) in survey.held.items()}
    last = 0
    for weight in weights:
        for paged in weight.tensors:
            for entry in paged.entries:
                last = found.setdefault(entry.module, last)
    return found


def _for_stretches(weight: Weight, holders: dict[nn.Module, int]) -> dict[int, Weight]:
    """Returns a weight for each stretch that uses it: tied modules on two devices have it on both."""
    stretches = sorted({holders[entry.module] for paged in weight.tensors for entry in paged.entries})
    parts = {}
    for stretch in stretches:
        part = parts[stretch] = Weight(
            weight.index,
            weight.nbytes,
            offset=weight.offset,
            arena_storage=weight.arena_storage,
            own_use_count=weight.own_use_count,
            shared=weight.shared,
            separate=weight.separate,
            other_stretches=len(stretches) - 1,
        )
        for paged in weight.tensors:
            entries = [entry for entry in paged.entries if holders[entry.module] == stretch]
            if entries:
                others = sum(not entry.is_weak and holders[entry.module] != stretch for entry in paged.entries)
                others += len({holders[entry.module] for entry in paged.entries} - {stretch})
                part.tensors.append(_part_of(paged, part, entries, others))
    return parts


def _part_of(paged: PagedTensor, weight: Weight, entries: list[ModuleEntry], others: int) -> PagedTensor:
    part = PagedTensor(paged.name, paged.tensor, weight, paged.byte_offset, entries, layout=paged.layout)
    part.other_holders = others
    part.mark_known()
    return part


def _trace_of(survey: Survey, first: int, end: int, own: dict[Weight, Weight]) -> Trace:
    whole = survey.trace
    segments = [
        Segment(segment.key, segment.calls, {own[weight]: None for weight in segment.weights})
        for segment in whole.segments[first:end]
    ]
    used = {weight for segment in whole.segments[first:end] for weight in segment.weights}
    return Trace(
        segments,
        whole.modules,
        written={own[weight] for weight in whole.written & own.keys()},
        gathered={own[weight]: read for weight, read in whole.gathered.items() if weight in used and weight in own},
        computed={
            own[weight] for weight in used if any(first <= position < end for position in survey.computed_at.get(weight, ()))
        },
        escaping={own[weight] for weight in whole.escaping & own.keys()},
        activations=whole.activations,
    )


def _homes(survey: Survey, stretch_of: dict[int, int], holders: dict[nn.Module, int]) -> list[Home | None]:
    homes: list[Home | None] = []
    for index, module in enumerate(survey.modules):
        held = {holders[part] for part in module.modules() if part in holders}
        if not held:
            homes.append(None)
        elif index in survey.called:
            first, last = (stretch_of[position] for position in survey.called[index])
            homes.append(Home(first, first == last and len(held) == 1))
        else:
            homes.append(Home(min(held), len(held) == 1))
    return homes
