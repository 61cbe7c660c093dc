"""The planner that splits a model over several devices, against every other split."""

import itertools
import random

import pytest
from memlab._paging.split import DeviceCapacity, Piece, split, stretch_ns


def stretches(pieces, firsts):
    return [pieces[first:end] for first, end in zip(firsts, [*firsts[1:], len(pieces)], strict=True)]


def times(pieces, capacities, firsts):
    """The longest time of a stretch, and the sum of all."""
    found = []
    for stretch, device_capacity in zip(stretches(pieces, firsts), capacities, strict=True):
        weights = {}
        for piece in stretch:
            weights |= piece.weights
        compute = sum(piece.compute_ns for piece in stretch)
        found.append(stretch_ns(sum(weights.values()), max(weights.values(), default=0), compute, device_capacity))
    return max(found), sum(found)


@pytest.mark.parametrize("seed", range(150))
def test_no_other_split_is_faster(seed):
    # GIVEN pieces of all sizes, some with shared weights, and devices that differ in budgets and buses
    chance = random.Random(seed)
    pieces = [
        Piece({chance.randrange(12): 0 for _ in range(chance.randrange(4))}, chance.choice([0, 1, 5, 20]) * 1.0)
        for _ in range(chance.randrange(1, 9))
    ]
    size = [chance.randrange(1, 60) for _ in range(12)]
    pieces = [Piece({weight: size[weight] for weight in piece.weights}, piece.compute_ns) for piece in pieces]
    capacities = [
        DeviceCapacity(chance.randrange(0, 120), chance.choice([1e9, 2e9, 1e10])) for _ in range(chance.randrange(1, 4))
    ]
    # WHEN they are split
    firsts = split(pieces, capacities)
    # THEN each device has a stretch, in order
    assert len(firsts) == len(capacities) and firsts[0] == 0 and firsts == sorted(firsts) and firsts[-1] <= len(pieces)
    # AND no other split has a faster slowest device, nor an equal one with a smaller sum
    others = itertools.combinations_with_replacement(range(len(pieces) + 1), len(capacities) - 1)
    assert times(pieces, capacities, firsts) == min(times(pieces, capacities, (0, *other)) for other in others)


def test_models_that_fit_are_split_by_compute():
    # GIVEN memory for all, and a device with twice the memory of the other
    pieces = [Piece({index: 10}, 5.0) for index in range(6)]
    # THEN compute decides
    assert split(pieces, [DeviceCapacity(100, 1e9), DeviceCapacity(200, 1e9)]) == [0, 3]


def test_memory_decides_where_copies_do():
    # GIVEN layers that hardly compute, and devices of 10 and 50 bytes
    pieces = [Piece({index: 10}, 0.1) for index in range(8)]
    # THEN each copies equally much in a forward: 10 and 10 bytes
    assert split(pieces, [DeviceCapacity(10, 1e9), DeviceCapacity(50, 1e9)]) == [0, 2]


def test_a_weight_comes_where_it_fits():
    # GIVEN a large weight at the end, and a small last device
    pieces = [Piece({"a": 10}, 1.0), Piece({"b": 10}, 1.0), Piece({"large": 80}, 1.0)]
    # THEN the first device has it, whatever the others have
    assert split(pieces, [DeviceCapacity(90, 1e9), DeviceCapacity(20, 1e9)]) == [0, 3]
