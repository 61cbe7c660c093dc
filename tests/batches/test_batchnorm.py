"""BatchNorm in batches that are computed by memlab: exactly, with statistics of pieces, or with those that are there."""

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
    # WHEN nothing is said of it
    model = normalised()
    package.accumulate(model, inputs, loss_fn, targets=targets)
    # THEN gradients and running statistics are those
    for one, other in zip(gradients(model), gradients(expected), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(running(model), running(expected), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["BatchNorm", "InstanceNorm"])
def test_what_is_not_exact_is_said_in_each_way(kind):
    # GIVEN layers whose statistics are of all samples, and exact=False
    torch.manual_seed(0)
    layers = {"BatchNorm": nn.BatchNorm2d(4), "InstanceNorm": nn.InstanceNorm2d(4, track_running_stats=True)}
    inputs, targets = torch.randn(BATCH, 3, 6, 6), torch.randint(0, 3, (BATCH,))

    def made():
        torch.manual_seed(0)
        layer = copy.deepcopy(layers[kind])
        return nn.Sequential(nn.Conv2d(3, 4, 3), layer, nn.Flatten(), nn.Linear(4 * 16, 3))

    # WHEN pieces go through, by a mean, by a loss of all outputs, and in a loop of one's own; THEN it is said
    said = f"exact=False: 1 is a {kind}2d"
    for loss_fn in (nn.CrossEntropyLoss(), contrastive):
        with pytest.warns(UserWarning, match=said):
            package.accumulate(made(), inputs, loss_fn, targets=targets, micro_batch=5, exact=False)
    ib = package.InfinityBatch(made(), verbose=False, micro_batch=5, exact=False)
    with pytest.warns(UserWarning, match=said):
        ib.batch_(inputs)
    # AND not where a batch is one piece, nor in an evaluation, nor where nothing was allowed
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
    # WHEN nobody asks for pieces; THEN the whole batch goes through at once
    ib = package.InfinityBatch(model, criterion=nn.CrossEntropyLoss(), verbose=False)
    assert ib.plan.name == "whole batch" and "1 is a InstanceNorm2d with running statistics" in ib.plan.reason
    package.accumulate(model, inputs, nn.CrossEntropyLoss(), targets=targets)
    for one, other in zip([*gradients(model), *running(model)], [*gradients(twin), *running(twin)], strict=True):
        assert torch.equal(one, other)
    # AND pieces are refused
    with pytest.raises(RuntimeError, match=r"the buffer 1\.running_mean depends on the samples"):
        package.accumulate(model, inputs, nn.CrossEntropyLoss(), targets=targets, micro_batch=5)


@pytest.mark.parametrize("micro_batch", [4, 5, 1])
@pytest.mark.parametrize("loss_fn", [nn.CrossEntropyLoss(), contrastive])
def test_frozen_statistics_are_used_and_kept(loss_fn, micro_batch):
    # GIVEN running statistics that are not those of the batch, and gradients in evaluation mode
    inputs, targets = batch()
    expected = normalised()
    expected[1].running_mean.normal_()
    model = copy.deepcopy(expected)
    expected[1].eval()
    loss_fn(expected(inputs), targets).backward()
    before = running(model)
    # WHEN pieces are computed with frozen statistics
    package.accumulate(model, inputs, loss_fn, targets=targets, micro_batch=micro_batch, batchnorm="frozen")
    # THEN gradients are the same, statistics stay, and the layer is in training again
    for one, other in zip(gradients(model), gradients(expected), strict=True):
        assert (one - other).abs().max() <= 1e-13
    assert all(torch.equal(one, other) for one, other in zip(running(model), before, strict=True))
    assert model[1].training


@pytest.mark.parametrize("loss_fn", [nn.CrossEntropyLoss(), contrastive])
def test_ghost_batches_have_statistics_of_their_own(loss_fn):
    # GIVEN the outputs of pieces by hand, each with statistics of its own
    inputs, targets = batch()
    expected = normalised()
    outputs = torch.cat([expected(inputs[:8]), expected(inputs[8:])])
    loss_fn(outputs, targets).backward()
    # WHEN pieces are ghost batches
    model = normalised()
    package.accumulate(model, inputs, loss_fn, targets=targets, micro_batch=8, batchnorm="ghost")
    # THEN gradients are those
    for one, other in zip(gradients(model), gradients(expected), strict=True):
        assert (one - other).abs().max() <= 1e-13
    # AND the running mean has gone as far as one batch moves it, each piece for its share
    mean = torch.zeros(16)
    for piece in inputs[:8], inputs[8:]:
        step = 1 - 0.9 ** (len(piece) / BATCH)
        mean = mean + step * (model[0](piece).mean(0).detach() - mean)
    torch.testing.assert_close(model[1].running_mean, mean)
    assert model[1].num_batches_tracked == 1 and model[1].momentum == 0.1


def test_it_can_be_refused():
    inputs, targets = batch()
    # GIVEN BatchNorm in training, WHEN that is refused, THEN in words, and nothing has changed
    model = normalised()
    with pytest.raises(RuntimeError, match="1 is a BatchNorm1d in training, which mixes all samples"):
        package.accumulate(model, inputs, nn.CrossEntropyLoss(), targets=targets, batchnorm="refuse")
    assert all(gradient is None for gradient in gradients(model))
    with pytest.raises(ValueError, match="batchnorm='gost': must be one of 'exact', 'ghost'"):
        package.accumulate(model, inputs, nn.CrossEntropyLoss(), targets=targets, batchnorm="gost")


def test_a_loop_of_ones_own_sees_the_whole_batch():
    # GIVEN a loop with a loss of one's own over a model with BatchNorm
    inputs, targets = batch()
    expected, model = normalised(), normalised()
    contrastive(expected(inputs), targets).backward()
    ib = package.InfinityBatch(model, verbose=False)
    # WHEN the outputs of a batch are asked for, THEN they have the gradients of the whole batch
    contrastive(ib.batch_(inputs), targets).backward()
    for one, other in zip(gradients(model), gradients(expected), strict=True):
        assert torch.equal(one, other)


def test_frozen_statistics_in_a_loop_of_ones_own():
    # GIVEN frozen statistics and pieces
    inputs, targets = batch()
    model = normalised()
    ib = package.InfinityBatch(model, verbose=False, micro_batch=5, batchnorm="frozen")
    outputs = ib.batch_(inputs)
    # WHEN backward computes the pieces again, THEN with the same layers
    contrastive(outputs, targets).backward()
    expected = normalised()
    expected[1].eval()
    contrastive(expected(inputs), targets).backward()
    for one, other in zip(gradients(model), gradients(expected), strict=True):
        assert (one - other).abs().max() <= 1e-13


def test_the_plan_says_which_way_and_why():
    # GIVEN models and losses of several kinds, WHEN the plan is printed, THEN it marks a way and gives the reason
    plain, loss = nn.Linear(3, 2), nn.CrossEntropyLoss()
    assert str(package.InfinityBatch(plain, criterion=loss).plan) == (
        "→ micro-batches  each micro-batch forward and backward, weighted by its part of the mean\n"
        "  replay         all micro-batches forward, the loss of all outputs, each one forward again and backward\n"
        "  whole batch    one forward; activations that do not fit leave the GPU\n"
        "  lockstep       micro-batches in threads, which wait for each other at each BatchNorm\n"
        "\n"
        "micro-batches: CrossEntropyLoss is a mean or a sum over samples\n"
        "not replay: each forward would run twice\n"
        "not whole batch, lockstep: no layer needs statistics of all samples\n"
        "micro-batch size: the whole batch; a CPU has no limit without micro_batch"
    )
    cut = package.InfinityBatch(normalised(), criterion=loss, micro_batch=7).plan
    assert "not whole batch: micro_batch asks for micro-batches" in str(cut) and str(cut).endswith(
        "micro-batch size: 7 samples (micro_batch); a remainder has fewer"
    )
    assert "→ replay" in str(package.InfinityBatch(plain, criterion=contrastive).plan)
    assert "contrastive is not a PyTorch criterion" in str(package.InfinityBatch(plain, criterion=contrastive).plan)
    whole = package.InfinityBatch(normalised(), criterion=loss).plan
    assert whole.name == "whole batch" and "1 is a BatchNorm1d in training" in whole.reason
    assert package.InfinityBatch(normalised(), criterion=loss, batchnorm="ghost").plan.batchnorm == "ghost"


def test_on_a_gpu_it_takes_what_there_is(memlab):
    # GIVEN a convolutional model with BatchNorm, and a batch whose activations are larger than the card
    program = (PYTHON, PROGRAMS / "normalised.py")
    # WHEN it is computed as it is, and by memlab
    run = memlab.run(*program, simgpu=("--card", "h100"), memory="1GiB", preload=False)
    row = json.loads(run.output.splitlines()[-1])
    # THEN as it is it does not fit, and memlab computes it: all gradients are there
    assert row["plain"] == "out of memory"
    assert row["peak"] < 1 << 30 and row["missing"] == []


@pytest.mark.parametrize("micro_batch", [5, 4, 1])
@pytest.mark.parametrize("loss_fn", [nn.CrossEntropyLoss(), contrastive])
def test_pieces_meet_at_each_layer(loss_fn, micro_batch):
    # GIVEN the gradients of the whole batch
    inputs, targets = batch()
    expected = normalised()
    loss = loss_fn(expected(inputs), targets)
    loss.backward()
    # WHEN the batch is computed in pieces of a size that the caller has asked for
    model = normalised()
    got = package.accumulate(model, inputs, loss_fn, targets=targets, micro_batch=micro_batch)
    # THEN loss, gradients and running statistics are those of the whole batch
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
    # WHEN pieces are asked for, THEN they meet there, and there is nothing to freeze
    package.accumulate(model, inputs, nn.CrossEntropyLoss(), targets=targets, micro_batch=5)
    for one, other in zip(gradients(model), gradients(expected), strict=True):
        assert (one - other).abs().max() <= 1e-13
    with pytest.raises(RuntimeError, match="1 keeps no running statistics"):
        package.accumulate(model, inputs, nn.CrossEntropyLoss(), targets=targets, batchnorm="frozen")
