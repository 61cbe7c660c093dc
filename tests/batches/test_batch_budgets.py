"""Micro-batches never exceed `memory=`, and run whenever one fits, on the simulated GPU."""

import json
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from memlab._batches.gradients import WideSums
from memlab._batches.nested import Joining, joined
from memlab._batches.sizing import MeasuredSize
from torch import nn
from torch.utils._pytree import tree_leaves

PROGRAM = Path(__file__).parent / "programs" / "budgets.py"


@pytest.mark.parametrize("case", ["pieces", "replay", "dropout"])
def test_batches_keep_within_their_budget(memlab, case):
    # GIVEN a small card, and batches whose outputs and gradients take much of the limit
    run = memlab.python(PROGRAM, case, preload=False, memory="1GiB", env={"PYTHONPATH": ROOT / "python"})
    assert run.code == 0, run.errors[-3000:]
    # WHEN several steps run, with and without existing gradients; THEN all succeed, AND none exceeds the limit
    found = [json.loads(line) for line in run.output.splitlines()]
    assert len(found) == (2 if case == "dropout" else 4)
    for one in found:
        assert 0.5 * one["allowed"] < one["most"] <= one["allowed"], one
        # (A micro-batch that draws random numbers is tried, then repeated with its activations off the GPU.)
        assert case == "dropout" or one["ooms"] == 0


def test_sizes_follow_what_pieces_took_in_any_order(monkeypatch):
    # GIVEN micro-batches of 100 bytes a sample, the last measured 100 bytes smaller than the previous one
    model = nn.Linear(1, 1, bias=False)
    model.weight.grad = torch.zeros(1, 1)
    sizing = MeasuredSize(model, torch.device("cuda"), None)
    monkeypatch.setattr("memlab._batches.sizing.room_on", lambda device, memory: 100_000)
    for size, taken in ((1, 300), (2, 400), (16, 1800), (128, 13_000), (130, 12_900)):
        sizing._taken[size] = taken
    # THEN the next micro-batch is the largest that fits, not eight times the last
    assert 1000 <= sizing._largest() <= 1030
    # AND memory for the outputs of the batch is reserved
    sizing.note_outputs(10)
    sizing.keep_outputs(5_000)
    assert 490 <= sizing._largest() <= 520
    # AND float32 sums of half-precision gradients take 4 bytes for each element
    weights = [nn.Parameter(torch.zeros(3, dtype=torch.bfloat16)), nn.Parameter(torch.zeros(5))]
    assert WideSums.bytes_for(weights) == 12


PIECES = [range(2), range(2, 4), range(4, 5)]


@pytest.mark.parametrize(
    "make",
    [
        lambda rows: torch.arange(rows.start, rows.stop).float(),
        lambda rows: {"a": torch.ones(len(rows), 3), "b": (torch.zeros(len(rows), 2), "text", None)},
        lambda rows: torch.ones(len(rows), 2, 3, 4).contiguous(memory_format=torch.channels_last),
        lambda rows: torch.ones(len(rows), 1, dtype=torch.long if rows.start else torch.int32),
    ],
    ids=["rows", "nested", "channels last", "types"],
)
def test_results_that_come_one_by_one_are_as_those_together(make):
    # GIVEN results of micro-batches; WHEN they are joined one by one; THEN they equal the joined result
    joining = Joining(5)
    for rows in PIECES:
        joining.add(make(rows), rows)
    ours, theirs = joining.whole(), joined([make(rows) for rows in PIECES], PIECES)
    for one, other in zip(tree_leaves(ours), tree_leaves(theirs), strict=True):
        if isinstance(one, torch.Tensor):
            assert torch.equal(one, other) and (one.dtype, one.stride()) == (other.dtype, other.stride())
        else:
            assert one == other
    # AND results that cannot be joined are refused by name
    joining = Joining(5)
    with pytest.raises(ValueError, match="output 'scale' is a tensor of shape"):
        for rows in PIECES:
            joining.add({"scale": torch.ones(())}, rows)
        joining.whole()
