"""Splits a model over several devices: a consecutive stretch of its pieces for each, so that the slowest is fastest.

A device computes its stretch and meanwhile copies the weights that do not fit in its memory, so a stretch takes

    max(compute, (bytes - budget) / bandwidth)

The planner of one device uses the same bound. `split` minimises the longest of these times and, among such splits, their
sum. It is exact, because a stretch takes at least as long as any part of it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Piece:
    """A part of the model that no border may cut."""

    weights: Mapping[Any, int] = field(default_factory=dict)  # Bytes of each; pieces of one stretch share common weights.
    compute_ns: float = 0.0


@dataclass(frozen=True)
class DeviceCapacity:
    """Budget and bandwidth of a device."""

    budget: int
    bytes_per_second: float


# Time of a stretch with a weight larger than its device's budget: longer than any stretch that fits.
UNFIT_NS = 1e30

Times = list[list[float]]  # By first piece and end (exclusive): nanoseconds of a stretch on one device.


def split(pieces: Sequence[Piece], capacities: Sequence[DeviceCapacity]) -> list[int]:
    """Returns the first piece of each device, starting with 0. The first piece of an empty stretch is that of the next one.

    If no split fits, a weight goes to a device that is too small for it. Its placement then raises with the required bytes.
    """
    of_device = [_times(pieces, device_capacity) for device_capacity in capacities]
    slowest, _ = _least(of_device, max, math.inf)
    return _least(of_device, operator.add, slowest)[1]


def stretch_ns(nbytes: int, largest: int, compute_ns: float, device_capacity: DeviceCapacity) -> float:
    """Returns the time of a device for weights of `nbytes`, the largest of which has `largest`."""
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
    """Returns the split with the least `joined` time, among those without a stretch longer than `longest`."""
    count = len(of_device[0])
    # By number of pieces on the devices so far: the least time, and their first pieces.
    best: list[tuple[float, list[int]]] = [(math.inf if pieces else 0.0, []) for pieces in range(count)]
    for times in of_device:
        # Among equal splits, one in which earlier devices have more.
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
