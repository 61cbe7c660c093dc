"""The GPU check that micro-batch gradients stay within the spread of float32 (`on_gpu.sh "batch zoo"`), on the CPU."""

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
    """Checks for each way whether every gradient of a model is close enough to float64."""
    (case,) = [case for case in zoo.models() if case.name == name]
    found: dict[str, list[bool]] = {}
    for way, far, usual, _ in zoo.compared(case):
        found.setdefault(way, []).append(zoo.is_within(far, usual))
    return found


def test_all_ways_of_computing_a_batch_are_within_the_spread_of_float32(zoo):
    # GIVEN models with independent samples, with dropout, and with BatchNorm
    # WHEN they run in each way; THEN gradients are as close to float64 as float32 allows
    for name in ("MLP", "GPT, dropout", "ResNet, BatchNorm"):
        found = within(zoo, name)
        assert len(found) == 3
        assert all(all(ways) for ways in found.values()), (name, found)


def test_pieces_with_statistics_of_their_own_are_beyond_it(zoo, monkeypatch):
    # GIVEN a wrong implementation: each micro-batch uses its own statistics
    exactly = package.accumulate

    def apart(*arguments, **options):
        return exactly(*arguments, **options, batchnorm="ghost")

    monkeypatch.setattr(package, "accumulate", apart)
    # WHEN a model with BatchNorm runs; THEN every micro-batch size fails, and the full batch passes
    found = within(zoo, "ResNet, BatchNorm")
    assert not any(found["lockstep"])
    assert all(found["at once"] + found["offload"])
