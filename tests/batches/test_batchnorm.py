"""BatchNorm in memlab's batches: exact, with micro-batch statistics, or with the existing statistics."""

import copy
import json
import warnings
from pathlib import Path

import memlab as package
import pytest
import torch
from conftest import PYTHON
from torch import nn
from torch.nn import functional

PROGRAMS = Path(__file__).parent / "programs"

BATCH = 12


pytestmark = pytest.mark.usefixtures("in_double_precision")


def normalised(momentum=0.1):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 16), nn.BatchNorm1d(16, momentum=momentum), nn.ReLU(), nn.Linear(16, 3))


def batch():
    torch.manual_seed(1)
    return torch.randn(BATCH, 7, dtype=torch.float64), torch.randint(0, 3, (BATCH,))


def contrastive(outputs, targets):
    vectors = functional.normalize(outputs, dim=-1)
    return functional.cross_entropy(vectors @ vectors.T, targets)


def gradients(model):
    return [parameter.grad for parameter in model.parameters()]


def running(model):
    return [buffer.clone() for buffer in model.buffers()]


@pytest.mark.parametrize("loss_fn", [nn.CrossEntropyLoss(), contrastive])
def test_the_whole_batch_goes_through_at_once(loss_fn):
    # GIVEN a model with BatchNorm and its gradients
    inputs, targets = batch()
    expected = normalised()
    loss_fn(expected(inputs), targets).backward()
    # WHEN no option is given
    model = normalised()
    package.accumulate(model, inputs, loss_fn, targets=targets)
    # THEN gradients and running statistics equal the full batch's
    for one, other in zip(gradients(model), gradients(expected), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(running(model), running(expected), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["BatchNorm", "InstanceNorm"])
def test_inexact_gradients_are_warned_about_in_each_way(kind):
    # GIVEN layers with statistics over all samples, and exact=False
    torch.manual_seed(0)
    layers = {"BatchNorm": nn.BatchNorm2d(4), "InstanceNorm": nn.InstanceNorm2d(4, track_running_stats=True)}
    inputs, targets = torch.randn(BATCH, 3, 6, 6), torch.randint(0, 3, (BATCH,))

    def made():
        torch.manual_seed(0)
        layer = copy.deepcopy(layers[kind])
        return nn.Sequential(nn.Conv2d(3, 4, 3), layer, nn.Flatten(), nn.Linear(4 * 16, 3))

    # WHEN micro-batches run with a mean, with a loss of all outputs, and in a custom loop; THEN memlab warns
    said = f"exact=False: 1 is a {kind}2d"
    for loss_fn in (nn.CrossEntropyLoss(), contrastive):
        with pytest.warns(UserWarning, match=said):
            package.accumulate(made(), inputs, loss_fn, targets=targets, micro_batch=5, exact=False)
    ib = package.InfinityBatch(made(), verbose=False, micro_batch=5, exact=False)
    with pytest.warns(UserWarning, match=said):
        ib.batch_(inputs)
    # AND it does not warn for a single micro-batch, in evaluation, or without exact=False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ib.batch_(inputs[:5])
        ib.evaluate([(inputs, targets)], {"right": lambda outputs, targets: 0.0})
        package.accumulate(made(), inputs, nn.CrossEntropyLoss(), targets=targets)


def test_running_statistics_of_instances_are_those_of_the_whole_batch():
    # GIVEN InstanceNorm with running statistics, and a twin
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, track_running_stats=True), nn.Flatten(), nn.Linear(64, 3))
    twin, (inputs, targets) = copy.deepcopy(model), (torch.randn(BATCH, 3, 6, 6), torch.randint(0, 3, (BATCH,)))
    nn.CrossEntropyLoss()(twin(inputs), targets).backward()
    # WHEN no micro-batch size is given; THEN the full batch runs at once
    ib = package.InfinityBatch(model, criterion=nn.CrossEntropyLoss(), verbose=False)
    assert ib.plan.name == "whole batch" and "1 is a InstanceNorm2d with running statistics" in ib.plan.reason
    package.accumulate(model, inputs, nn.CrossEntropyLoss(), targets=targets)
    for one, other in zip([*gradients(model), *running(model)], [*gradients(twin), *running(twin)], strict=True):
        assert torch.equal(one, other)
    # AND micro-batches are refused
    with pytest.raises(RuntimeError, match=r"the buffer 1\.running_mean depends on the samples"):
        package.accumulate(model, inputs, nn.CrossEntropyLoss(), targets=targets, micro_batch=5)


@pytest.mark.parametrize("micro_batch", [4, 5, 1])
@pytest.mark.parametrize("loss_fn", [nn.CrossEntropyLoss(), contrastive])
def test_frozen_statistics_are_used_and_kept(loss_fn, micro_batch):
    # GIVEN running statistics other than the batch's, and gradients in evaluation mode
    inputs, targets = batch()
    expected = normalised()
    expected[1].running_mean.normal_()
    model = copy.deepcopy(expected)
    expected[1].eval()
    loss_fn(expected(inputs), targets).backward()
    before = running(model)
    # WHEN micro-batches run with frozen statistics
    package.accumulate(model, inputs, loss_fn, targets=targets, micro_batch=micro_batch, batchnorm="frozen")
    # THEN gradients are the same, statistics are unchanged, and the layer is in training mode again
    for one, other in zip(gradients(model), gradients(expected), strict=True):
        assert (one - other).abs().max() <= 1e-13
    assert all(torch.equal(one, other) for one, other in zip(running(model), before, strict=True))
    assert model[1].training


@pytest.mark.parametrize("loss_fn", [nn.CrossEntropyLoss(), contrastive])
def test_ghost_batches_have_statistics_of_their_own(loss_fn):
    # GIVEN the outputs of micro-batches computed by hand, each with its own statistics
    inputs, targets = batch()
    expected = normalised()
    outputs = torch.cat([expected(inputs[:8]), expected(inputs[8:])])
    loss_fn(outputs, targets).backward()
    # WHEN micro-batches are ghost batches
    model = normalised()
    package.accumulate(model, inputs, loss_fn, targets=targets, micro_batch=8, batchnorm="ghost")
    # THEN gradients are equal
    for one, other in zip(gradients(model), gradients(expected), strict=True):
        assert (one - other).abs().max() <= 1e-13
    # AND the running mean has moved as far as one batch moves it, in proportion to each micro-batch
    mean = torch.zeros(16)
    for piece in inputs[:8], inputs[8:]:
        step = 1 - 0.9 ** (len(piece) / BATCH)
        mean = mean + step * (model[0](piece).mean(0).detach() - mean)
    torch.testing.assert_close(model[1].running_mean, mean)
    assert model[1].num_batches_tracked == 1 and model[1].momentum == 0.1


def test_it_can_be_refused():
    inputs, targets = batch()
    # GIVEN BatchNorm in training, WHEN it is refused, THEN the error explains it, and nothing has changed
    model = normalised()
    with pytest.raises(RuntimeError, match="1 is a BatchNorm1d in training, which mixes all samples"):
        package.accumulate(model, inputs, nn.CrossEntropyLoss(), targets=targets, batchnorm="refuse")
    assert all(gradient is None for gradient in gradients(model))
    with pytest.raises(ValueError, match="batchnorm='gost': must be one of 'exact', 'ghost'"):
        package.accumulate(model, inputs, nn.CrossEntropyLoss(), targets=targets, batchnorm="gost")


def test_a_loop_of_ones_own_sees_the_whole_batch():
    # GIVEN a custom loop with a custom loss over a model with BatchNorm
    inputs, targets = batch()
    expected, model = normalised(), normalised()
    contrastive(expected(inputs), targets).backward()
    ib = package.InfinityBatch(model, verbose=False)
    # WHEN the loop computes the outputs of a batch, THEN they have the gradients of the full batch
    contrastive(ib.batch_(inputs), targets).backward()
    for one, other in zip(gradients(model), gradients(expected), strict=True):
        assert torch.equal(one, other)


def test_frozen_statistics_in_a_loop_of_ones_own():
    # GIVEN frozen statistics and micro-batches
    inputs, targets = batch()
    model = normalised()
    ib = package.InfinityBatch(model, verbose=False, micro_batch=5, batchnorm="frozen")
    outputs = ib.batch_(inputs)
    # WHEN backward recomputes the micro-batches, THEN the same layers are frozen
    contrastive(outputs, targets).backward()
    expected = normalised()
    expected[1].eval()
    contrastive(expected(inputs), targets).backward()
    for one, other in zip(gradients(model), gradients(expected), strict=True):
        assert (one - other).abs().max() <= 1e-13


def test_the_plan_marks_a_strategy_and_gives_the_reason():
    # GIVEN models and losses of several kinds, WHEN the plan is printed, THEN it marks a way and gives the reason
    plain, loss = nn.Linear(3, 2), nn.CrossEntropyLoss()
    assert str(package.InfinityBatch(plain, criterion=loss).plan) == (
        "→ micro-batches  each piece forward and backward, weighted by its part of the mean\n"
        "  replay         all pieces forward, the loss of all outputs, each piece forward again and backward\n"
        "  whole batch    one forward, its activations off the GPU as far as they do not fit\n"
        "  lockstep       pieces in threads, which meet at each BatchNorm\n"
        "\n"
        "micro-batches: CrossEntropyLoss is a mean or a sum over samples\n"
        "not replay: it would run each forward twice\n"
        "not whole batch, lockstep: no layer is to have statistics of all samples\n"
        "pieces: the whole batch, as on any CPU without micro_batch"
    )
    cut = package.InfinityBatch(normalised(), criterion=loss, micro_batch=7).plan
    assert "not whole batch: micro_batch asks for pieces" in str(cut) and str(cut).endswith(
        "pieces: 7 samples (micro_batch), a remainder fewer"
    )
    assert "→ replay" in str(package.InfinityBatch(plain, criterion=contrastive).plan)
    assert "contrastive is no criterion of PyTorch's" in str(package.InfinityBatch(plain, criterion=contrastive).plan)
    whole = package.InfinityBatch(normalised(), criterion=loss).plan
    assert whole.name == "whole batch" and "1 is a BatchNorm1d in training" in whole.reason
    assert package.InfinityBatch(normalised(), criterion=loss, batchnorm="ghost").plan.batchnorm == "ghost"


def test_a_batch_that_is_too_large_for_the_gpu_is_computed(memlab):
    # GIVEN a convolutional model with BatchNorm, and a batch whose activations are larger than the card
    program = (PYTHON, PROGRAMS / "normalised.py")
    # WHEN it runs in plain PyTorch, and under memlab
    run = memlab.run(*program, simgpu=("--card", "h100"), memory="1GiB", preload=False)
    row = json.loads(run.output.splitlines()[-1])
    # THEN plain PyTorch runs out of memory, and memlab computes all gradients
    assert row["plain"] == "out of memory"
    assert row["peak"] < 1 << 30 and row["missing"] == []


@pytest.mark.parametrize("micro_batch", [5, 4, 1])
@pytest.mark.parametrize("loss_fn", [nn.CrossEntropyLoss(), contrastive])
def test_pieces_meet_at_each_layer(loss_fn, micro_batch):
    # GIVEN the gradients of the full batch
    inputs, targets = batch()
    expected = normalised()
    loss = loss_fn(expected(inputs), targets)
    loss.backward()
    # WHEN the batch runs in micro-batches of the caller's size
    model = normalised()
    got = package.accumulate(model, inputs, loss_fn, targets=targets, micro_batch=micro_batch)
    # THEN loss, gradients and running statistics equal those of the full batch
    assert (got - loss).abs() <= 1e-13
    for one, other in zip([*gradients(model), *running(model)], [*gradients(expected), *running(expected)], strict=True):
        assert (one - other).abs().max() <= 1e-13
    assert model[1].num_batches_tracked == 1


def test_without_running_statistics_evaluation_mixes_samples_too():
    # GIVEN a layer without running statistics, in evaluation mode
    inputs, targets = batch()
    expected = nn.Sequential(nn.Linear(7, 3), nn.BatchNorm1d(3, track_running_stats=False)).eval()
    model = copy.deepcopy(expected)
    nn.CrossEntropyLoss()(expected(inputs), targets).backward()
    # WHEN micro-batches are requested, THEN they run in lockstep, with no statistics to freeze
    package.accumulate(model, inputs, nn.CrossEntropyLoss(), targets=targets, micro_batch=5)
    for one, other in zip(gradients(model), gradients(expected), strict=True):
        assert (one - other).abs().max() <= 1e-13
    with pytest.raises(RuntimeError, match="1 keeps no running statistics"):
        package.accumulate(model, inputs, nn.CrossEntropyLoss(), targets=targets, batchnorm="frozen")
