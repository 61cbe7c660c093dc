"""`memlab.InfinityBatch`: the seed's training loops, with full-batch gradients."""

import copy
import random

import memlab as package
import numpy
import pytest
import torch
from conftest import PYTHON, ROOT
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from trainings import Reader, assert_same, by_hand, digits, training

IMPORTED = {"PYTHONPATH": ROOT / "python"}


def contrastive(outputs, targets):
    features = functional.normalize(outputs)
    return functional.cross_entropy(features @ features.T / 0.3, targets)


def managed(ib):
    ib(3)


def by_epochs(ib):
    for _ in range(3):
        ib.epoch()


def in_a_loop(ib):
    for _ in range(3):
        for _inputs, targets in ib.dataloader:
            outputs = ib.batch_()
            loss = ib.criterion(outputs, targets)
            loss.backward()
            ib.step()
            ib.zero_grad()


def in_a_loop_of_its_methods(ib):
    for _ in range(3):
        ib.epochstart_()
        for inputs, _targets in ib.dataloader:
            ib.batch_(inputs)
            ib.loss()
            ib.backward()
            ib.step()
            ib.zero_grad()


@pytest.mark.parametrize("way", [managed, by_epochs, in_a_loop, in_a_loop_of_its_methods])
def test_each_way_of_the_seed_trains_as_whole_batches_do(way):
    # GIVEN three epochs of training, with batches of 20 in micro-batches of 7
    ib, twin = training()
    # WHEN it runs beside a twin with full batches
    way(ib)
    losses = by_hand(twin, 3)
    # THEN the models are equal, and so are the recorded losses
    assert_same(ib.model, twin)
    if way is not in_a_loop:
        assert [[loss for loss, _ in epoch] for epoch in ib.losses] == [pytest.approx(epoch, rel=1e-4) for epoch in losses]
        assert [[samples for _, samples in epoch] for epoch in ib.losses] == [[20, 20, 10]] * 3


def test_the_readme_of_the_seed_on_a_gpu(memlab):
    """GIVEN the loops of infinitybatch's README, unchanged except for the optimizer's name, and a GPU
    WHEN they run with outputs on the model's device, and on the CPU
    THEN they complete: targets are on the device of the outputs, and the loader's other values are unchanged."""
    program = """
import sys
from collections import namedtuple

import memlab as infinitybatch
import torch

EPOCHS = 2
device = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
data = torch.utils.data.TensorDataset(torch.randn(70, 1, 8, 8), torch.randint(0, 10, (70,)))
mydataloader = torch.utils.data.DataLoader(data, batch_size=32)

def MyModel():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

for backward_device in (None, "cpu"):
    ib = infinitybatch.InfinityBatch(backward_device=backward_device, verbose=False)
    ib.model = MyModel().to(device)
    ib.criterion = torch.nn.CrossEntropyLoss()
    ib.optimizer = torch.optim.Adam(ib.model.parameters())
    ib.dataloader = mydataloader

    ib(EPOCHS)

    for epoch in range(EPOCHS):
        ib.epoch()

    for epoch in range(EPOCHS):
        for inputs, targets in ib.dataloader:
            outputs = ib.batch_()
            loss = ib.criterion(outputs, targets)
            loss.backward()
            ib.step()
            ib.zero_grad()
            assert outputs.device == targets.device and inputs.device.type == "cpu", (outputs.device, targets.device)
            assert outputs.device.type == (backward_device or "cuda")

Batch = namedtuple("Batch", "left right targets")
named = Batch(torch.zeros(3, 2), torch.ones(3, 2), {"labels": torch.zeros(3)})
dictionary = {"x": torch.zeros(3)}
ib = infinitybatch.InfinityBatch(torch.nn.Bilinear(2, 2, 1).to(device), dataloader=[named, dictionary])
first, second = ib.dataloader
assert type(first) is Batch and first.targets["labels"].device.type == "cuda" and first.left is named.left
assert second is dictionary
print("ran")
"""
    run = memlab.run(PYTHON, "-c", program, simgpu=("--card", "h100"), memory="4GiB", preload=False, env=IMPORTED)
    assert (run.code, run.output) == (0, "ran\n"), run.errors


@pytest.mark.parametrize("loss_fn", [nn.CrossEntropyLoss(), contrastive], ids=["mean", "coupled"])
def test_batches_that_come_in_pieces(loss_fn):
    """GIVEN a dataloader that yields each batch as an iterable of micro-batches of any size
    WHEN a model is trained by epochs, and evaluated
    THEN results equal those of full batches, figures cover all samples, and a custom loop is refused."""

    class Pieces:
        def __init__(self, images, labels):
            self.parts = list(zip(images.split(6), labels.split(6), strict=True))

        def __iter__(self):
            return iter(self.parts)

    results = []
    for as_pieces in (False, True):
        ib, _ = training()
        ib.criterion = loss_fn
        whole = list(ib.dataloader)
        ib.dataloader = [Pieces(*batch) for batch in whole] if as_pieces else whole
        ib.train(2)
        results.append((ib.model, [row["loss"] for row in ib.statistics()]))
        assert [row["samples"] for row in ib.statistics()] == [20, 20, 10] * 2
    assert_same(results[0][0], results[1][0])
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-5)
    ib.criterion = nn.CrossEntropyLoss()
    evaluated = ib.evaluate()
    ib.dataloader = whole
    assert evaluated == pytest.approx(ib.evaluate())
    ib.dataloader = [Pieces(*batch) for batch in whole]
    with pytest.raises(RuntimeError, match="this one comes in micro-batches: train by epochs"):
        for _ in ib.dataloader:
            ib.batch_()


def test_a_misspelt_attribute_names_the_right_one():
    # GIVEN the seed's README, which misspells an attribute
    ib, _ = training()
    # THEN the error names the right one, instead of training without an optimizer
    with pytest.raises(AttributeError, match="'optimier': did you mean 'optimizer'"):
        ib.optimier = ib.optimizer
    with pytest.raises(AttributeError, match="'speed'; it has model, optimizer"):
        ib.speed = 2


def test_values_that_an_option_cannot_have_are_refused():
    # GIVEN invalid values; WHEN they are passed, or assigned later; THEN an error follows immediately
    cases = [
        ("batchnorm", "exakt", "batchnorm='exakt': must be one of 'exact'"),
        ("memory", "much", '"much" is not a size'),
        ("memory", -1, "memory=-1: must be"),
        ("micro_batch", -1, "micro_batch=-1: must be a whole number, 1 or more"),
        ("micro_batch", 2.0, "micro_batch=2.0"),
        ("exact", "no", "exact='no': must be True or False"),
    ]
    for name, value, message in cases:
        with pytest.raises(ValueError, match=message):
            package.InfinityBatch(**{name: value})
        ib, _ = training()
        with pytest.raises(ValueError, match=message):
            setattr(ib, name, value)
    with pytest.raises(RuntimeError, match="device"):
        package.InfinityBatch(backward_device="gpu of mine")
    with pytest.raises(ValueError, match="exact='no'"):
        package.accumulate(Reader(), torch.zeros(2, 1, 8, 8), torch.sum, exact="no")


def test_errors_name_missing_parts():
    ib = package.InfinityBatch(verbose=False)
    for name, value in (
        ("model", Reader()),
        ("criterion", nn.CrossEntropyLoss()),
        ("dataloader", DataLoader(digits(), batch_size=20)),
    ):
        with pytest.raises(RuntimeError, match=f"has no {name}"):
            ib.train(1)
        setattr(ib, name, value)
    with pytest.raises(RuntimeError, match="has no optimizer"):
        ib.train(1)
    # AND an optimizer of another model is refused, also when it is replaced midway
    ib.optimizer = torch.optim.Adam(ib.model.parameters())
    ib.train(1)
    ib.model = Reader()
    with pytest.raises(RuntimeError, match="none of the model's parameters"):
        ib.train(1)
    # AND steps out of order raise an explanatory error
    ib.optimizer = torch.optim.Adam(ib.model.parameters())
    with pytest.raises(RuntimeError, match=r"backward\(\) without a loss"):
        ib.backward()
    ib.dataloader = None
    with pytest.raises(RuntimeError, match=r"batch_\(\) without inputs"):
        ib.batch_()
    with pytest.raises(RuntimeError, match=r"loss\(\) needs outputs"):
        ib.loss()
    with pytest.raises(TypeError, match="yields a Tensor"):
        ib.dataloader = [torch.zeros(3, 1, 8, 8)]
        ib.epoch()


@pytest.mark.parametrize("keep", ["none", "last", "metrics", "host"])
def test_containers_hold_what_is_asked_for(keep):
    # GIVEN a policy, WHEN two epochs are trained in a loop
    ib, _ = training(keep=keep)
    for _ in range(2):
        ib.epochstart_()
        for _inputs, _targets in ib.dataloader:
            ib.batch_()
            ib.loss()
            ib.backward()
            ib.step()
            ib.zero_grad()
    # THEN the containers hold the policy's data by epoch and batch, and no tensor with a graph
    kept = {"none": [0], "last": [1], "metrics": [3, 3], "host": [3, 3]}
    tensors = {"none": [0], "last": [1], "metrics": [0, 0], "host": [3, 3]}
    assert [len(epoch) for epoch in ib.losses] == kept[keep]
    for container in (ib.inputs, ib.targets, ib.outputs):
        assert [len(epoch) for epoch in container] == tensors[keep]
        assert not any(entry.requires_grad for epoch in container for entry in epoch)
    ib.clearcontainers_()
    assert ib.losses == []
    with pytest.raises(ValueError, match="keep='all'"):
        ib.keep = "all"


def test_an_empty_dataloader_is_reported(capsys):
    # GIVEN an empty dataloader; THEN training warns instead of failing
    ib, _ = training()
    ib.dataloader = DataLoader(TensorDataset(torch.zeros(0, 1, 8, 8), torch.zeros(0)), batch_size=4)
    with pytest.warns(UserWarning, match="yielded no batch"):
        ib.epoch()
    # AND an epoch with batches prints one line
    ib.dataloader, ib.verbose = DataLoader(digits(), batch_size=20), True
    ib.epoch()
    assert "50 samples" in capsys.readouterr().out


def test_models_train_in_training_mode():
    # GIVEN a model after an evaluation; THEN an epoch trains it in training mode
    ib, _ = training()
    ib.model.eval()
    ib.epoch()
    assert ib.model.training


def test_devices():
    # GIVEN a device for the outputs; THEN they are on it, and the model's device is known
    ib, _ = training(backward_device="cpu")
    assert ib.forward_device == ib.updateforwarddevice() == torch.device("cpu")
    assert ib.checkdevices_()
    ib.changemodeldevice("meta")
    assert ib.forward_device.type == "meta" and not ib.checkdevices_()


def test_an_evaluation_is_that_of_all_samples_together():
    # GIVEN a model with dropout, and ignored targets, more of them in the first batch
    class Dropping(Reader):
        def forward(self, x):
            return functional.dropout(super().forward(x), 0.5, self.training)

    data = digits()
    images, labels = data.tensors
    labels[:11] = -100
    ib, _ = training(keep="host")
    ib.model = Dropping()
    loader = DataLoader(TensorDataset(images, labels), batch_size=20)
    state = torch.get_rng_state()
    # WHEN it is evaluated in micro-batches of 7 from batches of 20
    found = ib.evaluate(loader, {"right": lambda outputs, targets: (outputs.argmax(1) == targets).double().mean()})
    # THEN figures equal those of all samples at once, without dropout
    ib.model.eval()
    with torch.no_grad():
        outputs = ib.model(images)
    assert found["loss"] == pytest.approx(float(functional.cross_entropy(outputs, labels)), rel=1e-5)
    assert found["right"] == pytest.approx(float((outputs.argmax(1) == labels).double().mean()))
    # AND mode, random numbers, gradients and recorded data are unchanged
    ib.model.train()
    ib.evaluate(loader)
    assert ib.model.training and torch.equal(torch.get_rng_state(), state)
    assert ib.losses == [] and all(parameter.grad is None for parameter in ib.model.parameters())
    # AND sums add up, the criterion is optional, and nothing is printed
    ib.criterion = nn.CrossEntropyLoss(reduction="sum")
    assert ib.evaluate(loader)["loss"] == pytest.approx(float(ib.criterion(outputs, labels)), rel=1e-5)
    ib.criterion = None
    assert set(ib.evaluate(loader, {"mean": lambda outputs, targets: outputs.mean()})) == {"mean"}
    with pytest.raises(ValueError, match="nothing was evaluated"):
        ib.evaluate(loader)
    with pytest.raises(ValueError, match='cannot be called "loss"'):
        ib.evaluate(loader, {"loss": lambda outputs, targets: 0})


def test_history(memlab):
    """GIVEN snapshots before and after an allocation that is then freed, a quarter of a second apart
    WHEN they are compared
    THEN they have PyTorch's figures, and free cached memory is reserved minus allocated."""
    program = """
import itertools, types
import torch, memlab, memlab.compat.cuda_history
memlab.compat.cuda_history.time = types.SimpleNamespace(time=itertools.count(1000, 0.25).__next__)
history = memlab.CudaHistory()
history.append("at the very beginning of it all")
block = torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
history.append("held", "cuda:0")
counters = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
del block
last = history.append("freed", torch.device("cuda"), synchronize=False)
name, held = history[1]
assert (name, held) == list(history)[1] and history[-1].snapshot is last
assert held.device == torch.device("cuda", 0) and held.device_id == 0
assert (history[0].snapshot.time, held.time, last.time) == (1000, 1000.25, 1000.5)
assert (last - held).seconds == 0.25
assert (held.allocated, held.reserved, held.free_cache) == (*counters, 0), held
assert last.allocated == 0 and last.free_cache == last.reserved == 40 << 20
assert held.total == torch.cuda.get_device_properties(0).total_memory
change = history.difference("held", "freed")
assert change == last - held == memlab.MemoryDifference(0, 0, -(40 << 20), 40 << 20), change
assert [name for name, _ in history] == ["at the very beginning of it all", "held", "freed"] and len(history) == 3
for wrong in ("cpu", torch.device("cpu")):
    try:
        memlab.CudaMemorySnapShot(wrong)
    except ValueError as error:
        assert str(error) == "cpu is not a GPU"
    else:
        raise AssertionError(wrong)
print(history)
print(held)
"""
    run = memlab.run(PYTHON, "-c", program, simgpu=("--card", "h100"), memory="4GiB", preload=False, env=IMPORTED)
    assert run.code == 0, run.errors
    head, first, held, freed, described = run.output.splitlines()
    assert head.split() == ["device", "seconds", "total", "reserved", "allocated", "free_cache", "change"]
    assert first.startswith("at the very beginnin ") and first.split()[-2:] == ["0", "B"]
    assert len({len(line) for line in (head, first, held, freed)}) == 1 and first.split()[4:6] == ["0", "0.000"]
    assert held.split()[1:3] == ["0", "0.250"] and freed.split()[1:3] == ["0", "0.500"]
    assert "+40.0 MiB" in held and "-40.0 MiB" in freed
    assert described.startswith("<CudaMemorySnapShot of cuda:0: total 4.00 GiB, reserved 40.0 MiB, allocated 40.0 MiB")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_history_needs_a_gpu():
    with pytest.raises(RuntimeError, match="needs a GPU"):
        package.CudaMemorySnapShot()


def test_networks_are_compared():
    # GIVEN networks that are equal, or differ in a value, a type, or a name
    one, other = Reader(), Reader()
    assert package.is_equal_network(one, other) and package.is_equal_with_error(one, other)
    with torch.no_grad():
        other.answer.bias[2] += 1e-4
    # THEN the difference is found, and a tolerance can be given
    assert package.first_difference(one, other) == "answer.bias"
    assert not package.is_equal_network(one, other) and not package.is_equal_with_error(one, other)
    assert package.is_equal_with_error(one, other, error=1e-3)
    assert package.first_difference(one, copy.deepcopy(one).double()) == "picture.weight"
    assert package.first_difference(nn.Linear(2, 2), nn.Linear(2, 2, bias=False)) is not None
    # AND the comparison is exact unless a tolerance is given, with which NaN equals nothing
    nothing = copy.deepcopy(one)
    with torch.no_grad():
        nothing.answer.bias[0] = torch.nan
    zero, negative, half = nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1).to(torch.bfloat16)
    for model, value in ((zero, 0.0), (negative, -0.0)):
        nn.init.constant_(model.weight, value)
        nn.init.constant_(model.bias, value)
    assert package.is_equal_network(nothing, copy.deepcopy(nothing)) and package.is_equal_network(half, copy.deepcopy(half))
    assert package.first_difference(zero, negative) == "weight"
    assert package.is_equal_with_error(zero, negative)
    assert not package.is_equal_with_error(nothing, copy.deepcopy(nothing))
    # AND numbers of any shape compare too, also empty ones
    cases = [(1.0, 1.0 + 1e-9, True), (1.0, 1.1, False), (torch.inf, torch.inf, True), (torch.nan, torch.nan, False)]
    cases += [(torch.ones(3), torch.ones(3), True), (torch.ones(3), torch.ones(2), False), ([1, 2], [1, 2], True)]
    for first, second, expected in cases:
        assert package.is_equal_with_error(first, second) == expected
        # AND infinitybatch's call works, with `detach` as the third argument
        assert package.is_equal_with_error(first, second, True) == expected
        assert package.is_equal_with_error(first, second, detach=False) == expected
    assert package.is_equal_with_error(torch.zeros(1, requires_grad=True), torch.full((1,), 0.4), True, 0.5)
    assert not package.is_equal_with_error(torch.zeros(1), torch.full((1,), 0.6), False, 0.5)


@pytest.mark.parametrize("seed", [None, 7])
def test_runs_are_the_same_again(seed, monkeypatch):
    # GIVEN a seed, or none; WHEN runs are made deterministic; THEN they draw the same numbers
    before = torch.are_deterministic_algorithms_enabled()
    try:
        drawn = []
        for _ in range(2):
            package.determinize(seed)
            drawn.append((random.random(), torch.rand(2).tolist(), numpy.random.rand()))
        assert drawn[0] == drawn[1]
        assert torch.are_deterministic_algorithms_enabled()
        # AND without determinism, a run without a seed takes a new one from PyTorch each time
        monkeypatch.setattr(torch, "seed", iter([11, 2**40 + 12]).__next__)
        package.determinize(be_deterministic=False)
        first = torch.rand(2)
        package.determinize(be_deterministic=False)
        assert not torch.equal(torch.rand(2), first) and not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(before)
