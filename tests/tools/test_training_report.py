"""`ib.report()`: figures of training by epoch, and advice on speed from them."""

import copy
import itertools
import math
import types

import pytest
import torch
from conftest import PYTHON
from memlab._batches import records
from memlab._batches.records import Record
from memlab._batches.training_report import Memory, training_report
from torch import nn
from trainings import Reader, training

GIB = 1 << 30


def test_epochs_have_the_figures_of_their_batches(monkeypatch):
    # GIVEN two epochs, and one of a loop with a custom loss, whose batches take half a second each
    clock = types.SimpleNamespace(perf_counter=itertools.count(0, 0.5).__next__)
    monkeypatch.setattr(records, "time", clock)
    ib, _ = training()
    assert "no batch was noted" in str(ib.report()) and len(ib.report()) == 0
    ib.train(2)
    ib.epochstart_()
    for _ in ib.dataloader:
        ib.batch_()
        ib.loss()
        ib.backward()
        ib.step()
        ib.zero_grad()
    # WHEN they are reported
    report = ib.report()
    # THEN each has the totals of its batches
    rows = ib.statistics()
    for epoch in report:
        own = [row for row in rows if row["epoch"] == epoch.epoch]
        assert (epoch.batches, epoch.samples, epoch.pieces, epoch.phase) == (3, 50, (2, 3), None)
        assert epoch.loss == pytest.approx(sum(row["loss"] * row["samples"] for row in own) / 50)
        assert epoch.seconds == 1.5 and epoch.samples_per_second == pytest.approx(50 / 1.5)
        assert (epoch.peak_nbytes, epoch.offloaded_nbytes) == (None, 0)
    assert [epoch.ways for epoch in report.epochs] == [("micro-batches",), ("micro-batches",), ("replay",)]
    # AND it is a table, without advice, because no figure supports any
    head, *lines = str(report).splitlines()
    assert head.split() == [
        "epoch",
        "batches",
        "loss",
        "samples",
        "seconds",
        "samples/s",
        "way",
        "pieces",
        "peak",
        "offloaded",
    ]
    assert len(lines) == 3 and "2 to 3" in lines[0] and report.advice == ()
    # AND a NaN loss is named
    ib.criterion = lambda outputs, targets: outputs.sum() * torch.nan
    ib.epoch()
    assert "first loss that is not finite is nan, in epoch 3, batch 0" in ib.report().advice[0]


def test_models_are_reported_one_by_one():
    ib, _ = training()
    models = {"g": Reader(), "d": copy.deepcopy(Reader())}
    ib.model, ib.criterion = models, nn.CrossEntropyLoss()
    ib.optimizer = {name: torch.optim.SGD(model.parameters(), 0.1) for name, model in models.items()}
    for name in models:
        with ib.phase(name):
            ib.epoch()
    report = ib.report()
    assert [(epoch.epoch, epoch.phase, epoch.batches) for epoch in report] == [(0, "g", 3), (1, "d", 3)]
    assert str(report).splitlines()[1].split()[:2] == ["0", "g"]


def pieced(*, samples=64, pieces=8, peak=3 * GIB, way="micro-batches", offloaded=0):
    return Record(0, 0, samples, 1.0, None, way, pieces, offloaded, peak)


def advice_on(*records, **memory):
    """The advice on batches, on a card of 80 GiB with 1 GiB of weights."""
    facts = {
        "allocated_nbytes": GIB,
        "room_nbytes": 70 * GIB,
        "micro_batch": 8,
        "limit_nbytes": None,
        "total_nbytes": 80 * GIB,
    }
    return " ".join(training_report(records, [0.5] * len(records), Memory(**{**facts, **memory})).advice)


def test_larger_pieces_are_advised_where_they_fit():
    # A micro-batch takes 2 GiB beside the weights: of 8, all fit into 16 GiB, and two into 5
    assert "all 8 pieces of a batch fit at once" in advice_on(pieced(), room_nbytes=16 * GIB)
    assert "takes 2.00 GiB, and 5.00 GiB may be allocated: pieces of 16 samples fit" in advice_on(
        pieced(), room_nbytes=5 * GIB
    )
    # BUT no advice is given if two do not fit, if memlab chooses the size, or if micro-batches run in lockstep
    assert advice_on(pieced(), room_nbytes=3 * GIB) == ""
    assert advice_on(pieced(), micro_batch=None) == ""
    assert advice_on(pieced(way="lockstep")) == ""


def test_a_piece_of_one_sample_is_reported_if_two_do_not_fit():
    alone = pieced(samples=8, pieces=8)
    assert "A piece is one sample, which takes 2.00 GiB: two do not fit" in advice_on(
        alone, micro_batch=None, room_nbytes=3 * GIB
    )
    assert advice_on(alone, micro_batch=None) == ""


def test_needless_computation_and_copies_are_reported():
    assert "replay runs its forward twice" in advice_on(pieced(way="replay", pieces=1))
    assert advice_on(pieced(way="replay", pieces=1), pieced(way="replay"), room_nbytes=3 * GIB) == ""
    spilled = pieced(way="whole batch", pieces=1, offloaded=5 * GIB)
    assert "5.00 GiB were copied to the host to stay within memory=8.00 GiB" in advice_on(spilled, limit_nbytes=8 * GIB)
    assert advice_on(spilled) == "" and advice_on(spilled, limit_nbytes=80 * GIB) == ""


def test_epochs_without_samples_or_time():
    epoch = training_report([Record(0, 0, 0, 0.0, None, None, 1, 0, None)], [1.0], None).epochs[0]
    assert math.isnan(epoch.loss) and epoch.samples_per_second is None and epoch.ways == ()


def test_a_training_on_a_card_is_reported_with_its_memory(memlab):
    """GIVEN training on a card in small micro-batches WHEN it is reported THEN the report has the peak, and advises larger
    ones."""
    program = """
import torch, memlab
from torch import nn
model = nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 4)).cuda()
data = [(torch.randn(64, 256), torch.zeros(64, dtype=torch.long))]
optimizer = torch.optim.SGD(model.parameters(), 0.1)
ib = memlab.InfinityBatch(model, optimizer, nn.CrossEntropyLoss(), data, verbose=False, micro_batch=4)
ib.train(2)
(first, last), (advice,) = ib.report().epochs, ib.report().advice
assert last.peak_nbytes == torch.cuda.max_memory_allocated() >= first.peak_nbytes > 4 << 20
print(last.pieces, advice)
"""
    run = memlab.run(PYTHON, "-c", program, simgpu=("--card", "h100"), memory="4GiB", preload=False)
    assert run.code == 0, run.errors
    assert "(16, 16) A piece of micro_batch=4 takes" in run.output and "all 16 pieces of a batch fit at once" in run.output
