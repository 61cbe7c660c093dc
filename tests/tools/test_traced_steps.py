"""Steps of `memlab.InfinityBatch` are in the trace of the process."""

import json

import pytest
from conftest import ROOT

PROGRAM = ROOT / "tests" / "tools" / "programs" / "told.py"
CARD = {"simgpu": ("--card", "h100"), "memory": "4GiB"}


def figures(rows, *names):
    return [tuple(row[name] for name in names) for row in rows]


def test_steps_of_a_trace_have_the_data_of_the_training(memlab):
    # GIVEN training on the CPU and on a card, by epochs and in loops
    run = memlab.python(PROGRAM, **CARD)
    assert run.code == 0, run.errors
    by_epochs, of_a_phase, lockstep, whole, plain = json.loads(run.output)
    # WHEN their trace is reported
    steps = iter(memlab.report(run.trace)["steps"])

    def take(count):
        return [next(steps) for _ in range(count)]

    # THEN the step of each batch has the figures of the statistics
    names = ("epoch", "batch", "samples", "way", "pieces", "offloaded_bytes")
    epochs = by_epochs[:6]
    told = take(6)
    assert figures(told, *names) == figures(epochs, *names)
    assert {row["way"] for row in told} == {"micro-batches"} and [row["pieces"] for row in told] == [3, 3, 2] * 2
    assert [row["loss"] for row in told] == [row["loss"] for row in epochs]
    assert [row["duration_ns"] / 1e9 for row in told] == pytest.approx([row["seconds"] for row in epochs], abs=1e-8)
    assert all(row["samples_per_second"] == pytest.approx(row["samples"] * 1e9 / row["duration_ns"]) for row in told)
    # AND a step of two batches has them together, with the mean of their losses
    first, second, third = by_epochs[6:]
    both, last = take(2)
    assert (both["samples"], both["pieces"], both["way"]) == (40, 6, "replay")
    assert both["loss"] == pytest.approx((first["loss"] + second["loss"]) / 2)
    assert (both["epoch"], both["batch"], last["batch"], last["loss"]) == (2, 0, 1, third["loss"])
    # AND the loss is unknown where the caller computes it
    own = take(3)
    assert figures(own, "samples", "pieces", "loss", "way") == [(10, 2, None, "replay")] * 3
    # AND with two models each is named; a step that is not PyTorch's is not in the trace
    phase = take(3)
    assert figures(phase, "phase", "loss") == figures(of_a_phase, "phase", "loss")
    # AND steps of each way on a card are in the trace too, with their offloaded bytes
    for rows, way in ((lockstep, "lockstep"), (whole, "whole batch"), (plain, "micro-batches")):
        told = take(len(rows))
        assert figures(told, *names) == figures(rows, *names)
        assert {row["way"] for row in told} == {way} and all("loss" in row for row in told)
    assert all(row["offloaded_bytes"] > 0 for row in whole) and all(row["offloaded_bytes"] == 0 for row in plain)
    assert [row["pieces"] for row in lockstep] == [3, 3, 2]
    # AND late losses are written when the process ends
    late = take(3)
    assert figures(late, "epoch", "batch") == [(2, 0), (2, 1), (2, 2)] and all(row["loss"] is not None for row in late)
    assert next(steps, None) is None


def test_a_process_without_memlab_records_nothing(memlab):
    run = memlab.python(PROGRAM, preload=False, **CARD)
    assert run.code == 0, run.errors
    assert not run.traces and len(json.loads(run.output)) == 5
