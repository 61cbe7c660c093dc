"""All PyTorch criteria, in each way in which memlab computes a batch."""

import functools

import memlab as package
import pytest
import torch
from criteria import (
    BATCH,
    CLASSES,
    CRITERIA,
    IMAGES,
    PIECES,
    WEIGHTS,
    ZEROS_AND_ONES,
    Given,
    difference,
    model_for,
    numbers,
    same,
    whole,
)
from memlab._activations import offloaded_forward
from memlab._batches.observers import Computation, observing
from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("in_double_precision")


def all_at_once(criterion, targets):
    """A function of the outputs of all samples."""

    def loss_of(outputs, targets=targets):
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        targets = () if targets is None else targets if isinstance(targets, tuple) else (targets,)
        return criterion(*outputs, *targets)

    return loss_of


@pytest.mark.parametrize("way", ["micro-batches", "replay"])
@pytest.mark.parametrize("name", CRITERIA)
def test_every_criterion_gives_the_gradients_of_the_whole_batch(name, way):
    """GIVEN a PyTorch criterion, as it is or inside a function that memlab does not know
    WHEN a batch runs in micro-batches of any size
    THEN loss and gradients equal those of the full batch, up to rounding."""
    criterion, form, targets = CRITERIA[name]
    unknown = all_at_once(criterion, targets)
    for size in PIECES:
        model = Given(form)
        expected = whole(model, IMAGES, unknown)
        loss_fn = criterion if way == "micro-batches" else unknown
        value = package.accumulate(model, IMAGES, loss_fn, targets=targets, micro_batch=size)
        assert difference(model, value, expected) <= 1e-13, size


def test_connectionist_temporal_classification():
    # GIVEN a criterion whose outputs have time as their first dimension, and a sum that is divided by each target's length
    class Spoken(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model_for(CLASSES)

        def forward(self, x):
            return self.inner(x).transpose(0, 1).log_softmax(-1)

    speech = torch.randn(BATCH, 12, 7, generator=numbers(7))
    lengths = torch.randint(2, 5, (BATCH,), generator=numbers(8))
    targets = (torch.randint(1, CLASSES, (BATCH, 4), generator=numbers(9)), torch.full((BATCH,), 12), lengths)
    criterion, model = nn.CTCLoss(), Spoken()
    expected = whole(model, speech, lambda outputs: criterion(outputs, *targets))
    # WHEN a batch runs in micro-batches; THEN they are weighted by samples
    value = package.accumulate(model, speech, criterion, targets=targets, micro_batch=4)
    assert difference(model, value, expected) <= 1e-13


@pytest.mark.parametrize("name", CRITERIA)
def test_every_criterion_in_lockstep(name):
    """GIVEN a PyTorch criterion over a model with BatchNorm
    WHEN a batch runs in micro-batches of any size
    THEN loss, gradients and running statistics equal those of the full batch, up to rounding."""
    criterion, form, targets = CRITERIA[name]
    for size in PIECES:
        model, twin = (Given(form, nn.BatchNorm1d(7)) for _ in range(2))
        expected = whole(twin, IMAGES, all_at_once(criterion, targets))
        value = package.accumulate(model, IMAGES, criterion, targets=targets, micro_batch=size)
        assert difference(model, value, expected) <= 1e-13, size
        for one, other in zip(model.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", CRITERIA)
def test_every_criterion_with_activations_off_the_gpu(name, monkeypatch):
    """GIVEN a PyTorch criterion
    WHEN a batch runs with all of autograd's saved tensors offloaded, however small, in each recording stage
    THEN loss and gradients are bit-identical."""
    monkeypatch.setattr(offloaded_forward, "SMALLEST", 1)
    criterion, form, targets = CRITERIA[name]
    model = Given(form)
    loss_of = all_at_once(criterion, targets)
    loss, gradients = whole(model, IMAGES, loss_of)
    for _ in range(4):
        model.zero_grad()
        with package.offload_activations("4KiB", device="cpu"):
            value = loss_of(model(IMAGES))
        value.backward()
        assert torch.equal(value, loss)
        pairs = zip(model.parameters(), gradients, strict=True)
        assert all(torch.equal(parameter.grad, gradient) for parameter, gradient in pairs)


SAMPLE_WEIGHTS = torch.rand(BATCH, 1, generator=numbers(9), dtype=torch.float64)
WEIGHTED = {
    "weights of samples": (nn.BCEWithLogitsLoss(weight=SAMPLE_WEIGHTS), same, "replay"),
    "of samples and classes": (
        nn.BCEWithLogitsLoss(weight=SAMPLE_WEIGHTS * WEIGHTS, pos_weight=SAMPLE_WEIGHTS),
        same,
        "replay",
    ),
    "one number each": (nn.BCEWithLogitsLoss(weight=SAMPLE_WEIGHTS[:, 0]), lambda outputs: outputs[:, 0], "replay"),
    "weighted squares": (
        functools.partial(functional.mse_loss, weight=SAMPLE_WEIGHTS.expand(BATCH, CLASSES)),
        same,
        "replay",
    ),
    "weights of classes": (nn.BCEWithLogitsLoss(weight=WEIGHTS, pos_weight=WEIGHTS[None]), same, "micro-batches"),
}


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_of_samples_belong_to_the_whole_batch(name):
    """GIVEN a criterion with a weight for each sample of the batch, or for each class
    WHEN a batch runs in micro-batches of any size
    THEN gradients equal those of the full batch: by replay if a micro-batch's criterion would need other weights."""
    criterion, form, way = WEIGHTED[name]
    targets = form(ZEROS_AND_ONES)
    for size in PIECES:
        model = Given(form)
        expected = whole(model, IMAGES, all_at_once(criterion, targets))
        with observing(lambda rows, samples: None, computation := Computation()):
            value = package.accumulate(model, IMAGES, criterion, targets=targets, micro_batch=size)
        assert difference(model, value, expected) <= 1e-13, size
        assert computation.way == way
