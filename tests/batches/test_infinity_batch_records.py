"""`memlab.InfinityBatch`: callbacks, containers on disk, statistics, and the parameter table."""

import itertools
import json
import math
import textwrap
import types

import memlab as package
import pytest
import torch
from conftest import PYTHON, ROOT
from memlab._batches import module_costs, records
from test_infinity_batch import IMPORTED
from torch import nn
from trainings import assert_same, by_hand, training


def ticking(seconds):
    """A module `time` whose clock advances by `seconds` at each reading."""
    return types.SimpleNamespace(perf_counter=itertools.count(0, seconds).__next__)


class Listener:
    """Records its events, and raises at one of them."""

    def __init__(self, stop_at=None, after=0):
        self.told, self.stop_at, self.after = [], stop_at, after

    def note(self, event, *what):
        self.told.append((event, *what))
        if event == self.stop_at and sum(told[0] == event for told in self.told) > self.after:
            raise KeyboardInterrupt(event)

    def on_micro_batch(self, ib, rows, samples):
        self.note("micro_batch", rows.start, rows.stop, samples)

    def on_outputs(self, ib, outputs):
        self.note("outputs", tuple(outputs.shape))

    def on_loss(self, ib, loss):
        self.note("loss", float(loss.detach()))

    def on_step(self, ib):
        self.note("step")

    def on_epoch(self, ib, losses):
        self.note("epoch", losses)


def one_epoch_of_methods(ib):
    ib.epochstart_()
    for _inputs, _targets in ib.dataloader:
        ib.batch_()
        ib.loss()
        ib.backward()
        ib.step()
        ib.zero_grad()


PIECES = [("micro_batch", begin, min(begin + 7, 20), 20) for begin in (0, 7, 14)]
LAST_PIECES = [("micro_batch", 0, 7, 10), ("micro_batch", 7, 10, 10)]


def test_callbacks_receive_the_events_of_an_epoch():
    # GIVEN a callback, and one with a single method
    ib, _ = training()
    listener = Listener()

    class Counter:
        steps = 0

        def on_step(self, ib):
            self.steps += 1

    counter = Counter()
    ib.callbacks = [listener, counter]
    # WHEN an epoch is trained, with a mean loss, and with any other
    for criterion in (nn.CrossEntropyLoss(), lambda outputs, targets: nn.functional.cross_entropy(outputs, targets)):
        ib.criterion = criterion
        listener.told.clear()
        ib.epoch()
        # THEN it receives micro-batches, losses and steps in their order, and the epoch
        losses = ib.losses[-1]
        expected = []
        for index, pieces in enumerate([PIECES, PIECES, LAST_PIECES]):
            expected += [*pieces, ("loss", losses[index][0]), ("step",)]
        assert listener.told == [*expected, ("epoch", losses)]
    assert counter.steps == 6
    # AND also in a custom loop over outputs, whose micro-batches run in backward
    listener.told.clear()
    one_epoch_of_methods(ib)
    names = [event for event, *_ in listener.told]
    assert names[:6] == ["outputs", "loss", "micro_batch", "micro_batch", "micro_batch", "step"]
    assert listener.told[0] == ("outputs", (20, 4)) and listener.told[2:5] == PIECES
    # AND an evaluation sends no events
    listener.told.clear()
    ib.evaluate()
    assert listener.told == []


class Counting(nn.Module):
    """Counts its forwards in a buffer."""

    def __init__(self, model):
        super().__init__()
        self.model, self.norm = model, nn.Identity()
        self.register_buffer("forwards", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.forwards += 1
        return self.norm(self.model(x))


@pytest.mark.parametrize("way", ["micro-batches", "replay", "whole batch"])
@pytest.mark.parametrize("event", ["micro_batch", "loss", "step", "epoch"])
def test_a_callback_that_raises_stops_a_training(event, way):
    # GIVEN a callback that raises in the second batch (or after the epoch)
    ib, _ = training()
    ib.model = Counting(ib.model)
    if way == "whole batch":
        ib.micro_batch, ib.model.norm = None, nn.BatchNorm1d(4)
    ib.optimizer = torch.optim.Adam(ib.model.parameters())
    if way == "replay":
        ib.criterion = lambda outputs, targets: nn.functional.cross_entropy(outputs, targets)
    assert ib.plan.name == way
    after = {"micro_batch": 1 if way == "whole batch" else 4, "loss": 1, "step": 1, "epoch": 0}[event]
    ib.callbacks.append(Listener(event, after))
    # WHEN an epoch is trained
    with pytest.raises(KeyboardInterrupt, match=event):
        ib.epoch()
    # THEN it ends there: no gradients of a partial batch remain, and buffers are as after full batches
    steps = {"micro_batch": 1, "loss": 1, "step": 2, "epoch": 3}[event]
    assert next(iter(ib.optimizer.state.values()))["step"] == steps
    assert all(parameter.grad is None for parameter in ib.model.parameters())
    assert ib.model.forwards == {"micro_batch": 1, "loss": 2, "step": 2, "epoch": 3}[event]
    # AND training can continue
    ib.callbacks.clear()
    ib.epoch()
    assert [len(epoch) for epoch in ib.losses] == [steps, 3]


def test_callbacks_that_would_never_be_called_are_refused():
    ib, _ = training()

    class Misspelt:
        def on_epochs(self, ib, losses): ...

    with pytest.raises(TypeError, match="Misspelt has on_epochs: did you mean on_epoch"):
        ib.callbacks = [Misspelt()]
    with pytest.raises(TypeError, match="object has none of the methods that are called: on_micro_batch, "):
        package.InfinityBatch(callbacks=[object()])
    # AND the result is the same however callbacks are added
    listener = Listener("epoch", 0)
    ib.callbacks = [listener]
    ways = [
        lambda: ib.callbacks.append(Misspelt()),
        lambda: ib.callbacks.insert(0, Misspelt()),
        lambda: ib.callbacks.extend([listener, Misspelt()]),
        lambda: ib.callbacks.__iadd__([Misspelt()]),
        lambda: ib.callbacks.__setitem__(0, Misspelt()),
        lambda: ib.callbacks.__setitem__(slice(0, 1), [Misspelt()]),
    ]
    for add in ways:
        with pytest.raises(TypeError, match="did you mean on_epoch"):
            add()
    assert ib.callbacks == [listener]


@pytest.mark.parametrize("way", ["micro-batches", "replay", "whole batch", "lockstep"])
@pytest.mark.parametrize("keep", ["host", "disk", "last"])
def test_epochs_keep_outputs_too(way, keep):
    # GIVEN training that keeps outputs, and a plain loop with the same model
    def made():
        ib, _ = training(keep=keep)
        if way in ("whole batch", "lockstep"):
            ib.micro_batch, ib.model.norm = (None if way == "whole batch" else 7), nn.BatchNorm1d(4)
            forward = type(ib.model).forward
            ib.model.forward = lambda x, model=ib.model: model.norm(forward(model, x))
        ib.optimizer = torch.optim.Adam(ib.model.parameters())
        if way == "replay":
            ib.criterion = lambda outputs, targets: nn.functional.cross_entropy(outputs.mul_(2), targets)
        assert ib.plan.name == way
        return ib

    ib, other = made(), made()
    # WHEN it is trained by epochs
    ib.train(2)
    seen = []
    for _ in range(2):
        for _, targets in other.dataloader:
            outputs = other.batch_()
            seen.append(outputs.detach().clone())
            other.criterion(outputs, targets).backward()
            other.step()
            other.zero_grad()
    # THEN it has the outputs of full batches, without a graph
    kept = [outputs for epoch in ib.outputs for outputs in epoch]
    expected = seen[-1:] if keep == "last" else seen
    assert len(kept) == len(expected)
    for one, outputs in zip(kept, expected, strict=True):
        assert not one.requires_grad
        torch.testing.assert_close(one, outputs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("has_loss", [True, False], ids=["its loss", "another loss"])
def test_batches_of_a_loop_with_its_own_backward_are_noted(has_loss, tmp_path):
    # GIVEN a loop as in the seed's README: `loss.backward()`, of ib.loss() or of a criterion that it calls itself
    ib, _ = training(keep="host")
    for _, targets in ib.dataloader:
        outputs = ib.batch_()
        loss = ib.loss() if has_loss else ib.criterion(outputs, targets)
        loss.backward()
        ib.step()
        ib.zero_grad()
        ib.batch_()  # For inspection only: not a trained batch.
    # THEN each batch is recorded once, with the known figures
    rows = ib.statistics()
    assert [(row["samples"], row["way"], row["pieces"]) for row in rows] == [
        (20, "replay", 3),
        (20, "replay", 3),
        (10, "replay", 2),
    ]
    assert [outputs.shape for outputs in ib.outputs[0]] == [(20, 4), (20, 4), (10, 4)]
    # AND its loss, if ib.loss() computed it
    (report,) = ib.report()
    if has_loss:
        assert all(row["loss"] == one for row, (one, _) in zip(rows, ib.losses[0], strict=True))
        assert report.loss == pytest.approx(sum(row["loss"] * row["samples"] for row in rows) / 50)
        return
    assert [row["loss"] for row in rows] == [None] * 3 and all(math.isnan(loss) for loss, _ in ib.losses[0])
    assert report.loss is None and "nan" not in str(ib.report())
    ib.save_statistics(tmp_path / "run.jsonl")
    assert [json.loads(line)["loss"] for line in (tmp_path / "run.jsonl").read_text().splitlines()] == [None] * 3


def test_kept_batches_may_be_bounded_later():
    # GIVEN training that keeps everything
    ib, _ = training(keep="host")
    ib.train(2)
    # WHEN a bound is set; THEN the oldest batches are dropped now, and more as others arrive
    of_an_epoch = sum(one.nbytes for container in (ib.inputs, ib.targets, ib.outputs) for one in container[1])
    ib.keep_nbytes = of_an_epoch
    assert ib.keep_nbytes == of_an_epoch and [one is None for one in ib.inputs[0]] == [True] * 3
    assert [one is None for one in ib.inputs[1]] == [False] * 3
    ib.epoch()
    assert [one is None for one in ib.inputs[1]] == [True] * 3 and ib.inputs[2][0] is not None
    for wrong in (-1, 1.5, "much"):
        with pytest.raises(ValueError):
            ib.keep_nbytes = wrong


@pytest.mark.parametrize("keep", ["host", "disk"])
def test_containers_are_bounded(keep, tmp_path):
    # GIVEN room for two batches: 20 images of 256 bytes, labels of 8 and outputs of 16 each
    batch = 20 * (256 + 8 + 16)
    folder = tmp_path / "kept"
    ib, _ = training(keep=keep, keep_nbytes=batch * 2, keep_folder=folder if keep == "disk" else None)
    twin = list(ib.dataloader)
    # WHEN two epochs of 20, 20 and 10 samples are trained
    one_epoch_of_methods(ib)
    one_epoch_of_methods(ib)
    # THEN the newest batches remain at their positions, and only losses remain of the oldest
    for container in (ib.inputs, ib.targets, ib.outputs):
        assert [[entry is not None for entry in epoch] for epoch in container] == [[False] * 3, [False, True, True]]
    for index in (1, 2):
        torch.testing.assert_close(ib.inputs[1][index], twin[index][0])
        torch.testing.assert_close(ib.targets[-1][index], twin[index][1])
    assert ib.outputs[1][1:][0].shape == (20, 4) and not ib.outputs[1][1].requires_grad
    assert [len(epoch) for epoch in ib.losses] == [3, 3]
    # AND the disk contains nothing else: dropped batches delete their files
    files = list(folder.rglob("*.pt"))
    assert len(files) == (6 if keep == "disk" else 0)
    if keep == "disk":
        assert sum(file.stat().st_size for file in files) < 2 * batch + 6 * 4096
    ib.clearcontainers_()
    assert ib.inputs == [] and ib.statistics() == [] and list(folder.rglob("*.pt")) == []


def test_a_temporary_folder_is_removed():
    # GIVEN training that keeps its batches on disk, WHEN it ends, THEN its files are deleted
    ib, _ = training(keep="disk", keep_nbytes="1MiB")
    ib.epoch()
    folder = ib._kept._files.path
    assert (
        len(list(folder.glob("*.pt"))) == 9 and ib.outputs[0][0].shape == (20, 4) and ib.inputs[0][2].shape == (10, 1, 8, 8)
    )
    ib.keep = "metrics"
    assert not folder.exists() and ib.inputs == [] and ib.keep_nbytes == 1 << 20
    with pytest.raises(ValueError, match="keep_nbytes=-1"):
        package.InfinityBatch(keep_nbytes=-1)
    with pytest.raises(ValueError, match='keep_folder is for keep="disk"'):
        package.InfinityBatch(keep_folder="kept")


@pytest.mark.parametrize("keep", ["none", "metrics"])
def test_statistics(keep, tmp_path, monkeypatch):
    # GIVEN two epochs whose batches take half a second each, WHEN their statistics are read and written
    monkeypatch.setattr(records, "time", ticking(0.5))
    ib, twin = training(keep=keep)
    ib.train(2)
    rows = ib.statistics()
    ib.save_statistics(tmp_path / "statistics.jsonl")
    # THEN they contain each batch, whatever else is kept
    losses = by_hand(twin, 2)
    assert_same(ib.model, twin)
    places = [(epoch, batch, samples) for epoch in range(2) for batch, samples in enumerate((20, 20, 10))]
    assert [(row["epoch"], row["batch"], row["samples"]) for row in rows] == places
    assert [row["loss"] for row in rows] == pytest.approx([loss for epoch in losses for loss in epoch], rel=1e-4)
    assert [(row["seconds"], row["samples_per_second"]) for row in rows] == [(0.5, 40), (0.5, 40), (0.5, 20)] * 2
    assert [json.loads(line) for line in (tmp_path / "statistics.jsonl").read_text().splitlines()] == rows
    # AND JSON has no NaN
    ib.criterion = lambda outputs, targets: outputs.sum() * torch.nan
    ib.epoch()
    ib.save_statistics(tmp_path / "statistics.jsonl")
    assert json.loads((tmp_path / "statistics.jsonl").read_text().splitlines()[-1])["loss"] is None


def test_losses_are_not_waited_for(monkeypatch):
    # GIVEN training of 150 batches
    ib, _ = training()
    ib.dataloader = [(torch.ones(2, 1, 8, 8), torch.tensor([0, 3]))] * 150
    read = []
    for name in ("__float__", "item", "tolist"):
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda tensor, name=name, original=original: read.append(name) or original(tensor)
        )
    # WHEN it runs, THEN no loss is read until the losses are requested, and then all together
    ib.optimizer = torch.optim.SGD(ib.model.parameters(), 0.01)
    ib.epoch()
    assert read == []
    assert len(ib.losses[0]) == 150 and len(read) == 3


def test_the_documented_callbacks():
    # GIVEN the documented callbacks for TensorBoard and Weights & Biases, with writers that only record
    page = (ROOT / "docs" / "big-batches.md").read_text()
    section = page.partition("## Following a training\n")[2].partition("A callback is an object")[0]
    noted = []

    class Writer:
        def add_scalar(self, name, value, step):
            noted.append((name, float(value), step))

        def log(self, values):
            noted.append(values)

    board = types.SimpleNamespace(SummaryWriter=Writer)
    fake = types.SimpleNamespace(utils=types.SimpleNamespace(tensorboard=board))
    wandb = types.SimpleNamespace(init=lambda project: Writer())
    ib, _ = training()
    exec(textwrap.dedent(section), {"ib": ib, "torch": fake, "wandb": wandb})
    # WHEN two epochs are trained
    ib.train(2)
    # THEN they have written each batch's loss, and each epoch's
    first, second = ib.losses
    assert [entry for entry in noted if isinstance(entry, tuple)] == [
        ("loss", loss, step) for step, (loss, _) in enumerate([*first, *second])
    ]
    means = [sum(loss * samples for loss, samples in epoch) / 50 for epoch in ib.losses]
    assert [entry for entry in noted if isinstance(entry, dict)] == [
        {"epoch": epoch, "loss": mean} for epoch, mean in enumerate(means)
    ]


class Tied(nn.Module):
    """A weight of 5 × 3 that two layers share, a frozen layer, and a layer without parameters."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(5, 3)
        self.body = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.LayerNorm(3).requires_grad_(False))
        self.answer = nn.Linear(3, 5, bias=False)
        self.answer.weight = self.words.weight

    def forward(self, x):
        return self.answer(self.body(self.words(x)))


def test_the_table_of_parameters():
    # GIVEN a model before and after its first step with Adam
    ib = package.InfinityBatch(Tied(), criterion=nn.CrossEntropyLoss(), verbose=False)
    with pytest.raises(KeyError):
        ib.parameters_table()["body.1"]
    assert ib.parameters_table().total.gradient_nbytes == 0
    ib.optimizer = torch.optim.Adam(ib.model.parameters())
    ib.criterion(ib.batch_(torch.arange(5)), torch.arange(5)).backward()
    ib.step()
    # WHEN its parameters are counted
    table = ib.parameters_table()
    # THEN the shared weight counts once in the total, and in each module that has it
    assert [(row.name, row.own, row.total, row.trainable, row.frozen) for row in table] == [
        ("", 0, 33, 27, 6),
        ("words", 15, 15, 15, 0),
        ("body", 0, 18, 12, 6),
        ("body.0", 12, 12, 12, 0),
        ("body.2", 6, 6, 0, 6),
        ("answer", 0, 15, 15, 0),
    ]
    assert sum(row.own for row in table) == table.total.total == sum(one.numel() for one in ib.model.parameters())
    # AND bytes cover weights and gradients in float32, and two moments and a step for each trained parameter
    assert (table.total.weight_nbytes, table.total.gradient_nbytes) == (33 * 4, 27 * 4)
    assert table["words"].optimizer_nbytes == 2 * 15 * 4 + 4 and table["body.2"].optimizer_nbytes == 0
    # AND the printed table has a line for each
    lines = str(table).splitlines()
    assert len(lines) == len(table) + 1 and lines[4].split()[:6] == ["0", "Linear", "12", "12", "12", "0"]


def test_an_epoch_waits_for_nothing_on_a_gpu(memlab):
    """GIVEN a card, and PyTorch set to raise on host synchronisation
    WHEN epochs are trained in micro-batches with a mean loss, and batches of a loop
    THEN nothing synchronises until the losses are read."""
    program = """
import torch, memlab
from torch import nn
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).cuda()
data = [(torch.randn(20, 8, device="cuda"), torch.zeros(20, dtype=torch.long, device="cuda")) for _ in range(70)]
optimizer = torch.optim.SGD(model.parameters(), 0.1)
ib = memlab.InfinityBatch(model, optimizer, nn.CrossEntropyLoss(), data, verbose=False, micro_batch=7)
ib.epoch()
torch.cuda.set_sync_debug_mode("error")
ib.epoch()
try:
    ib.losses
except RuntimeError as error:
    print("waits:", "synchroniz" in str(error))
torch.cuda.set_sync_debug_mode("default")
print([len(epoch) for epoch in ib.losses], len(ib.statistics()))
"""
    run = memlab.run(PYTHON, "-c", program, simgpu=("--card", "h100"), memory="4GiB", preload=False, env=IMPORTED)
    assert run.code == 0, run.errors
    assert run.output.splitlines() == ["waits: True", "[70, 70] 140"], run.output


def test_the_table_has_the_costs_of_modules_for_a_batch(monkeypatch):
    # GIVEN a clock that advances by 1 ms at each reading
    monkeypatch.setattr(module_costs, "time", ticking(0.001))

    # AND a model with an in-place layer, and a layer that is called twice
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.act, self.shared = nn.Linear(8, 64), nn.ReLU(inplace=True), nn.Linear(64, 64)
            self.norm = nn.BatchNorm1d(64)

        def forward(self, x):
            return self.norm(self.shared(self.act(self.shared(self.act(self.first(x))))))

    torch.manual_seed(0)
    model = Model()
    model.first.weight.grad = torch.ones_like(model.first.weight)
    before, drawn = [buffer.clone() for buffer in model.buffers()], torch.get_rng_state()
    # WHEN the table is requested with a batch of 4 samples of float64 or float32
    inputs = torch.randn(4, 8)
    torch.set_rng_state(drawn)
    table = package.InfinityBatch(model).parameters_table(inputs)
    # THEN each module has its share: the saved input or result of each sample counts once
    element = inputs.element_size()
    assert table["first"].cost.saved_nbytes == 8 * element
    # Includes the results of both calls of `act`, which are the inputs of `shared`.
    assert table["act"].cost.saved_nbytes == 2 * 64 * element
    assert table["shared"].cost.saved_nbytes == 0
    assert table.total.cost.saved_nbytes >= (8 + 3 * 64) * element
    # Each module's forward reads the clock at its start and end: six calls in the whole model.
    forwards = {row.name: row.cost.forward_ms for row in table}
    assert forwards == pytest.approx({"": 2 * 6 + 1, "first": 1, "act": 2, "shared": 2, "norm": 1})
    backwards = {row.name: row.cost.backward_ms for row in table}
    assert all(0 < milliseconds < backwards[""] for name, milliseconds in backwards.items() if name)
    assert "saved/sample" in str(table) and "saved/sample" not in str(package.InfinityBatch(model).parameters_table())
    # AND the measurement leaves no trace in the model
    assert torch.equal(model.first.weight.grad, torch.ones_like(model.first.weight)) and model.shared.weight.grad is None
    assert all(torch.equal(one, other) for one, other in zip(model.buffers(), before, strict=True))
    assert torch.equal(torch.get_rng_state(), drawn)
