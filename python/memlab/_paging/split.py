"""Where a model is cut for several devices: a consecutive stretch of its pieces for each, so that the slowest is fastest.

A device computes with its stretch and meanwhile copies what does not fit in its memory, so that a stretch takes

    max(compute, (bytes - budget) / bandwidth)

which is also the bound that the planner of one device uses. `split` makes the longest of these times as short as it can be,
and among such splits their sum. It is exact: a stretch takes at least as long as any part of it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Piece:
    """What no border may cut."""

    weights: Mapping[Any, int] = field(default_factory=dict)  # Bytes of each; pieces of one stretch share what both have.
    compute_ns: float = 0.0


@dataclass(frozen=True)
class DeviceCapacity:
    """What a device has."""

    budget: int
    bytes_per_second: float


# What a stretch takes that has a weight larger than its device's budget: more than any that fits.
UNFIT_NS = 1e30

Times = list[list[float]]  # By first piece and end (exclusive): nanoseconds of a stretch on one device.


def split(pieces: Sequence[Piece], capacities: Sequence[DeviceCapacity]) -> list[int]:
    """The first piece of each device, beginning with 0. That of an empty stretch is where the next one begins.

    Where no split fits, a weight goes to a device that is too small for it: its placement then says how much is needed.
    """
    of_device = [_times(pieces, device_capacity) for device_capacity in capacities]
    slowest, _ = _least(of_device, max, math.inf)
    return _least(of_device, operator.add, slowest)[1]


def stretch_ns(nbytes: int, largest: int, compute_ns: float, device_capacity: DeviceCapacity) -> float:
    """How long a device takes for weights of `nbytes`, the largest of which has `largest`."""
    if largest > device_capacity.budget:
        return UNFIT_NS
    return max(compute_ns, max(nbytes - device_capacity.budget, 0) / device_capacity.bytes_per_second * 1e9)


def _times(pieces: Sequence[Piece], device_capacity: DeviceCapacity) -> Times:
    times = []
    for first in range(len(pieces) + 1):
        seen: set[Hashable] = set()
        nbytes, largest, compute_ns = 0, 0, 0.0
        row = [math.inf] * first + [0.0]
        for piece in pieces[first:]:
            for weight in piece.weights.keys() - seen:
                nbytes += piece.weights[weight]
                largest = max(largest, piece.weights[weight])
            seen.update(piece.weights)
            compute_ns += piece.compute_ns
            row.append(stretch_ns(nbytes, largest, compute_ns, device_capacity))
        times.append(row)
    return times


def _least(of_device: list[Times], joined: Callable[[float, float], float], longest: float) -> tuple[float, list[int]]:
    """The split whose `joined` time is least, of those in which no stretch takes longer than `longest`."""
    count = len(of_device[0])
    # By how many pieces the devices until now have: the least time, and their first pieces.
    best: list[tuple[float, list[int]]] = [(math.inf if pieces else 0.0, []) for pieces in range(count)]
    for times in of_device:
        # Of equal splits, one in which earlier devices have more.
        best = [
            min(
                (
                    (joined(best[first][0], times[first][end]), [*best[first][1], first])
                    for first in range(end, -1, -1)
                    if times[first][end] <= longest
                ),
                key=operator.itemgetter(0),
            )
            for end in range(count)
        ]
    return best[-1]
