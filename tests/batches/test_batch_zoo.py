"""The check of a GPU that batches in pieces are within the spread of float32 (`on_gpu.sh "batch zoo"`), on the CPU."""

import importlib

import memlab as package
import pytest
from conftest import ROOT


@pytest.fixture
def zoo(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benches" / "on_gpu" / "programs")
    found = importlib.import_module("batch_zoo")
    monkeypatch.setattr(found, "DEVICE", "cpu")
    monkeypatch.setattr(found.offloaded_forward, "SMALLEST", 1)
    return found


def within(zoo, name):
    """Whether each gradient of a model is as near to float64 as it has to be, by way."""
    (case,) = [case for case in zoo.models() if case.name == name]
    found: dict[str, list[bool]] = {}
    for way, far, usual, _ in zoo.compared(case):
        found.setdefault(way, []).append(zoo.is_within(far, usual))
    return found


def test_all_ways_of_computing_a_batch_are_within_the_spread_of_float32(zoo):
    # GIVEN models whose samples meet nowhere, with dropout, and in BatchNorm
    # WHEN they are computed in each way; THEN gradients are as near to those in float64 as float32 lets them be
    for name in ("MLP", "GPT, dropout", "ResNet, BatchNorm"):
        found = within(zoo, name)
        assert len(found) == 3
        assert all(all(ways) for ways in found.values()), (name, found)


def test_pieces_with_statistics_of_their_own_are_beyond_it(zoo, monkeypatch):
    # GIVEN a way that is wrong: each piece has statistics of its own
    exactly = package.accumulate

    def apart(*arguments, **options):
        return exactly(*arguments, **options, batchnorm="ghost")

    monkeypatch.setattr(package, "accumulate", apart)
    # WHEN a model with BatchNorm is computed; THEN no size of a piece passes, and the whole batch does
    found = within(zoo, "ResNet, BatchNorm")
    assert not any(found["lockstep"])
    assert all(found["at once"] + found["offload"])
