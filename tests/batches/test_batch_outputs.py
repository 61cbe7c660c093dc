"""Outputs of `InfinityBatch.batch_`: autograd treats them as a model's own outputs, or refuses."""

import gc
from weakref import ref

import memlab as package
import pytest
import torch
from conftest import microbatch_threads
from criteria import CLASSES, IMAGES, VALUES, contrastive, model_for
from torch import nn
from torch.utils.data import DataLoader

pytestmark = pytest.mark.usefixtures("in_double_precision")


def normalised(outputs):
    """A model with BatchNorm, whose micro-batches run in lockstep."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, outputs))


MODELS = pytest.mark.parametrize("make", [model_for, normalised], ids=["replay", "lockstep"])


def in_pieces(model, size=4):
    """Stands in for the model in a custom loop."""
    return package.InfinityBatch(model, verbose=False, micro_batch=size).batch_


def assert_same_gradients(model, twin):
    for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), name
        if ours.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-13)


@MODELS
def test_a_gradient_of_the_inputs_leaves_parameters_alone(make):
    # GIVEN adversarial training: the gradient changes the inputs, and the model learns from the changed inputs
    def train(model, forward):
        images = IMAGES.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(contrastive(forward(images)), images)
        contrastive(forward(IMAGES + 0.1 * gradient.sign())).backward()

    model, twin = make(CLASSES), make(CLASSES)
    # WHEN batches run in micro-batches
    train(model, in_pieces(model))
    train(twin, twin)
    # THEN parameters have the gradients of the second loss alone
    assert_same_gradients(model, twin)


@MODELS
def test_gradients_of_some_parameters(make):
    # GIVEN calls of autograd.grad, a backward for one parameter, and an existing gradient
    def train(model, forward):
        parameters = list(model.parameters())
        parameters[0].grad = torch.ones_like(parameters[0])
        asked = torch.autograd.grad(contrastive(forward(IMAGES)), [parameters[0], parameters[-1]])
        contrastive(forward(IMAGES.flip(0)[:9])).backward(inputs=[parameters[0]])
        return asked

    model, twin = make(CLASSES), make(CLASSES)
    # WHEN batches run in micro-batches; THEN gradients equal the model's own, and other parameters have none
    for ours, theirs in zip(train(model, in_pieces(model)), train(twin, twin), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-13)
    assert_same_gradients(model, twin)


@MODELS
def test_gradients_of_gradients_are_refused(make):
    # GIVEN a gradient penalty, which needs the graph of a gradient; WHEN outputs in micro-batches are asked for it
    model, images = make(CLASSES), IMAGES.clone().requires_grad_()
    outputs = in_pieces(model)(images)
    # THEN it is refused, also where the incoming gradient has no graph, and no gradient was added
    with pytest.raises(RuntimeError, match="gradients of gradients, as of a gradient penalty"):
        torch.autograd.grad(outputs.sum(), images, create_graph=True)
    assert all(one.grad is None for one in model.parameters())


@MODELS
def test_a_batch_ends_with_the_last_that_could_ask_for_its_gradients(make):
    # GIVEN an InfinityBatch
    ours = package.InfinityBatch(make(CLASSES), verbose=False, micro_batch=4)
    outputs = ours.batch_(IMAGES)
    # WHEN it and its outputs are dropped before any gradient was computed
    alive = ref(ours), ref(outputs)
    del ours, outputs
    gc.collect()
    # THEN none of their memory and no waiting thread remains
    assert alive[0]() is None
    assert alive[1]() is None
    assert not microbatch_threads()


@MODELS
def test_outputs_may_be_written_to(make):
    # GIVEN losses that change outputs in place, like a temperature
    def loss_of(outputs):
        outputs /= 0.07
        outputs[:, 0].mul_(2)
        return contrastive(outputs)

    for size in (4, None):
        model, twin = make(CLASSES), make(CLASSES)
        # WHEN a batch runs in a custom loop, then by `accumulate`, as the first batch of its model and as a later one
        for _ in range(2):
            loss_of(in_pieces(model, size)(IMAGES)).backward()
            package.accumulate(model, IMAGES, loss_of, micro_batch=size)
            pieces = DataLoader([(images,) for images in IMAGES.split(5)], batch_size=None)
            if make is model_for:
                package.accumulate(model, pieces, loss_of)
            for _ in range(3 if make is model_for else 2):
                loss_of(twin(IMAGES)).backward()
        # THEN gradients equal those of the full batch
        assert_same_gradients(model, twin)


def test_writing_to_outputs_does_not_hide_a_model_that_remembers():
    # GIVEN a model that returns different outputs at each call, and a loss that changes its outputs in place
    class Remembering(nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return super().forward(x) * self.calls

    torch.manual_seed(0)
    model = Remembering(7, CLASSES)
    # THEN backward raises an error
    with pytest.raises(RuntimeError, match="gives other outputs when the same samples"):
        contrastive(in_pieces(model, 5)(IMAGES).mul_(2)).backward()


def test_outputs_without_gradients_through_batchnorm():
    # GIVEN a generator with BatchNorm; WHEN its outputs are computed in lockstep without gradients
    model, twin = normalised(CLASSES), normalised(CLASSES)
    saved = []
    with torch.no_grad(), torch.autograd.graph.saved_tensors_hooks(lambda one: saved.append(one), lambda one: one):
        outputs, expected = in_pieces(model)(IMAGES), twin(IMAGES)
    # THEN they equal those of the full batch, statistics have moved once, and nothing was saved for a backward
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(list(model.buffers()), list(twin.buffers()))
    assert not outputs.requires_grad and not saved


@MODELS
@pytest.mark.parametrize("loss_fn", [contrastive, nn.MSELoss()], ids=["coupled", "mean"])
def test_hooks_on_parameters_see_the_gradient_of_the_batch(make, loss_fn):
    # GIVEN a hook that clamps a parameter's gradient, a hook that only reads, and existing gradients
    def with_hooks(model):
        first = next(iter(model.parameters()))
        first.grad, calls = torch.ones_like(first), []
        first.register_hook(lambda gradient: calls.append(gradient.clone()))
        first.register_hook(lambda gradient: gradient.clamp(-0.002, 0.002))
        return model, calls

    def loss_of(outputs):
        return contrastive(outputs) if loss_fn is contrastive else loss_fn(outputs, VALUES)

    targets = None if loss_fn is contrastive else VALUES
    ways = [
        lambda model: package.accumulate(model, IMAGES, loss_fn, targets=targets, micro_batch=4),
        lambda model: loss_of(in_pieces(model)(IMAGES)).backward(),
    ]
    if make is model_for:
        pieces = [(images, values) for images, values in zip(IMAGES.split(4), VALUES.split(4), strict=True)]
        coupled = lambda outputs, _: contrastive(outputs)  # noqa: E731
        criterion = coupled if loss_fn is contrastive else loss_fn
        ways.append(lambda model: package.accumulate(model, DataLoader(pieces, batch_size=None), criterion))
    twin, expected = with_hooks(make(CLASSES))
    loss_of(twin(IMAGES)).backward()
    for way in ways:
        # WHEN a batch runs in micro-batches
        model, calls = with_hooks(make(CLASSES))
        way(model)
        # THEN each hook ran once with the full-batch gradient, and its result was added
        torch.testing.assert_close(calls, expected, rtol=1e-12, atol=1e-13)
        assert_same_gradients(model, twin)
