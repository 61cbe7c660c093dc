"""`memlab.accumulate` with an iterable of micro-batches: full-batch gradients, without the full batch in memory."""

import copy
import gc
import weakref

import memlab as package
import pytest
import torch
from criteria import (
    BATCH,
    CLASSES,
    CRITERIA,
    IMAGES,
    SOME_IGNORED,
    VALUES,
    Given,
    contrastive,
    difference,
    model_for,
    whole,
)
from test_accumulate import Spectral
from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("in_double_precision")

# Uneven sizes, one micro-batch of one sample, and one micro-batch with all samples.
CUTS = [[4, 1, 6, 2], [5, 5, 3], [13]]


def rows(cut):
    begin = 0
    for size in cut:
        yield slice(begin, begin + size)
        begin += size


def cut_targets(targets, part):
    return tuple(one[part] for one in targets) if isinstance(targets, tuple) else targets[part]


def pieces(inputs, targets, cut):
    """A single-use generator of micro-batches."""
    for part in rows(cut):
        yield inputs[part] if targets is None else (inputs[part], cut_targets(targets, part))


class Again:
    """Yields the same micro-batches in each iteration."""

    def __init__(self, *arguments):
        self.arguments, self.times = arguments, 0

    def __iter__(self):
        self.times += 1
        return pieces(*self.arguments)


@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("name", CRITERIA)
def test_means_whose_total_is_not_known_before_the_end(name, cut):
    # GIVEN a criterion, gradients of a previous batch, and micro-batches that can be read only once
    criterion, form, targets = CRITERIA[name]
    model = Given(form)
    expected = whole(model, IMAGES, lambda outputs: criterion(*_tuple(outputs), *_tuple(targets)))
    before = [torch.full_like(parameter, 0.5) for parameter in model.parameters()]
    for parameter, gradient in zip(model.parameters(), before, strict=True):
        parameter.grad = gradient.clone()
    # WHEN they run one after the other, with those of more than 3 samples split
    value = package.accumulate(model, pieces(IMAGES, targets, cut), criterion, micro_batch=3)
    # THEN loss and gradients equal those of the full batch, and existing gradients count unchanged
    for parameter in model.parameters():
        parameter.grad -= 0.5
    assert difference(model, value, expected) <= 1e-13


def _tuple(values):
    return values if isinstance(values, tuple) else () if values is None else (values,)


def test_no_piece_is_kept():
    # GIVEN an iterable that creates each micro-batch on demand and tracks which are alive
    alive, most = weakref.WeakSet(), 0

    def made():
        nonlocal most
        for part in rows([1] * BATCH):
            images = IMAGES[part].clone()
            alive.add(images)
            gc.collect()
            most = max(most, len(alive))
            yield images, VALUES[part]
            del images

    # WHEN the batch runs; THEN at most two are alive: the current micro-batch and the next
    package.accumulate(model_for(CLASSES), made(), nn.MSELoss())
    assert most == 2


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_a_loss_that_compares_samples_takes_the_pieces_twice(cut):
    # GIVEN a contrastive loss, a model with dropout, and an iterable that can restart
    model, again = model_for(CLASSES), Again(IMAGES, None, cut)
    expected = whole(model, IMAGES, contrastive)
    # WHEN the batch runs; THEN the result equals the full batch
    value = package.accumulate(model, again, contrastive, micro_batch=4)
    assert difference(model, value, expected) <= 1e-13 and again.times == 2 + 1
    # AND with targets, from a DataLoader
    model = model_for(CLASSES)

    def nearest(outputs, targets):
        return torch.cdist(outputs, targets).logsumexp(1).mean()

    expected = whole(model, IMAGES, lambda outputs: nearest(outputs, VALUES))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(IMAGES, VALUES), batch_size=5)
    assert difference(model, package.accumulate(model, loader, nearest), expected) <= 1e-13


def test_dropout_draws_the_same_numbers_the_second_time():
    # GIVEN a model with dropout that records its masks
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.masks = model_for(CLASSES), []

        def forward(self, x):
            self.masks.append((torch.rand(len(x), 7) > 0.4) / 0.6)
            return self.inner(x * self.masks[-1])

    model = Dropping()
    value = package.accumulate(model, Again(IMAGES, None, [5, 5, 3]), contrastive)
    # THEN gradients equal those of the full batch with these masks
    first, second = torch.cat(model.masks[:3]), torch.cat(model.masks[3:])
    assert torch.equal(first, second)
    assert difference(model.inner, value, whole(model.inner, IMAGES * first, contrastive)) <= 1e-13


@pytest.mark.parametrize("loss_fn", [contrastive, nn.MSELoss()], ids=["replay", "micro-batches"])
def test_buffers_are_written_once(loss_fn):
    # GIVEN spectral normalisation, whose vectors change in each forward, and a counter
    model = Spectral()
    twin = copy.deepcopy(model)
    outputs = twin(IMAGES)
    (contrastive(outputs) if loss_fn is contrastive else loss_fn(outputs, VALUES)).backward()
    # WHEN micro-batches come from an iterable; THEN gradients and buffers equal those of one forward
    package.accumulate(model, Again(IMAGES, None if loss_fn is contrastive else VALUES, [4, 1, 6, 2]), loss_fn)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, rtol=1e-12, atol=1e-15)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(model.buffers(), twin.buffers(), strict=True))


@pytest.mark.parametrize("loss_fn", [contrastive, nn.MSELoss()], ids=["replay", "micro-batches"])
def test_half_precision_is_summed_in_float32(loss_fn):
    # GIVEN a model in bfloat16, many micro-batches, and existing gradients
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 64), nn.GELU(), nn.Linear(64, CLASSES)).bfloat16()
    images, values = torch.randn(256, 7).bfloat16(), torch.randn(256, CLASSES).bfloat16()
    exact, given, at_once = copy.deepcopy(model).double(), copy.deepcopy(model), copy.deepcopy(model)

    def loss_of(outputs, targets):
        return contrastive(outputs) if loss_fn is contrastive else loss_fn(outputs, targets)

    loss_of(exact(images.double()), values.double()).backward()
    loss_of(at_once(images), values).backward()
    cut = [1] * 255 + [1]
    package.accumulate(given, Again(images, None if loss_fn is contrastive else values, cut), loss_fn)

    def error(model):
        pairs = zip(model.parameters(), exact.parameters(), strict=True)
        return float(sum((one.grad.double() - other.grad).norm() for one, other in pairs))

    # THEN the sum is no worse than the full batch's gradient in bfloat16
    assert error(given) <= 1.1 * error(at_once)


def test_the_scale_of_a_scaler():
    # GIVEN a scaler, WHEN a step uses its scale; THEN unscaled gradients equal those of the full batch
    model = model_for(CLASSES)
    expected = whole(model, IMAGES, lambda outputs: nn.MSELoss()(outputs, VALUES))
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu", init_scale=1024.0)
    value = package.accumulate(model, pieces(IMAGES, VALUES, [5, 8]), nn.MSELoss(), scaler=scaler)
    scaler.unscale_(optimizer)
    assert difference(model, value, expected) <= 1e-13


def test_a_models_own_loss():
    # GIVEN a model that returns the mean of its labels' losses, and micro-batches with different numbers of labels
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model_for(CLASSES)

        def forward(self, x, labels):
            return {"loss": functional.cross_entropy(self.inner(x), labels)}

    model = Own()
    loss = model(IMAGES, SOME_IGNORED)["loss"]
    expected = loss.detach(), torch.autograd.grad(loss, list(model.parameters()))
    given = ({"x": IMAGES[part], "labels": SOME_IGNORED[part]} for part in rows([4, 1, 6, 2]))
    assert difference(model, package.accumulate(model, given, micro_batch=3), expected) <= 1e-13
    with pytest.raises(ValueError, match="the first piece has one sample"):
        package.accumulate(model, ({"x": IMAGES[part], "labels": SOME_IGNORED[part]} for part in rows([1, 12])))


def test_all_targets_are_ignored():
    # GIVEN a mean over no targets; THEN the loss is NaN, as in PyTorch
    value = package.accumulate(model_for(CLASSES), pieces(IMAGES, torch.full((BATCH,), -100), [6, 7]), nn.CrossEntropyLoss())
    assert value.isnan()


def test_a_failure_leaves_earlier_gradients():
    # GIVEN gradients of a previous batch
    model = model_for(CLASSES)
    package.accumulate(model, IMAGES, nn.MSELoss(), targets=VALUES)
    before = [parameter.grad.clone() for parameter in model.parameters()]

    def failing():
        for part in rows([1] * 8):
            yield IMAGES[part], VALUES[part]
        raise OSError("no such file")

    # WHEN an iterable fails midway, or a micro-batch is invalid; THEN these gradients are unchanged
    wrong = iter([(IMAGES[:4], VALUES[:4]), (IMAGES[:4], VALUES[:3])])
    for given, kind, message in ((failing(), OSError, "no such file"), (wrong, ValueError, "has 4 samples, but 3 targets")):
        with pytest.raises(kind, match=message):
            package.accumulate(model, given, nn.MSELoss())
        assert all(torch.equal(one.grad, other) for one, other in zip(model.parameters(), before, strict=True))


def test_an_iterable_that_fills_one_buffer_is_refused():
    """GIVEN an iterable that reuses one tensor for all micro-batches
    WHEN the next micro-batch is read before the previous one is computed
    THEN accumulate refuses it instead of computing from the wrong values."""
    buffer, model = torch.empty(4, 3), nn.Linear(3, 2)

    def pieces():
        for value in (1.0, 2.0):
            yield buffer.fill_(value), torch.zeros(4, 2)

    with pytest.raises(RuntimeError, match="has written into a piece that it gave before"):
        package.accumulate(model, pieces(), nn.MSELoss())
    assert model.weight.grad is None


def test_unsupported_iterables_are_refused():
    model = model_for(CLASSES)
    normalised = nn.Sequential(nn.Linear(7, CLASSES), nn.BatchNorm1d(CLASSES))
    shuffled = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(IMAGES), batch_size=4, shuffle=True)
    cases = [
        (RuntimeError, "needs the pieces twice, and a generator gives", model, pieces(IMAGES, None, [13]), contrastive, {}),
        (RuntimeError, "1 is a BatchNorm1d in training", normalised, pieces(IMAGES, VALUES, [13]), nn.MSELoss(), {}),
        (RuntimeError, "gives others the second time", model, shuffled, contrastive, {}),
        (ValueError, "leave targets out", model, pieces(IMAGES, None, [13]), nn.MSELoss(), {"targets": VALUES}),
        (ValueError, "the iterable gives no pieces", model, iter([]), nn.MSELoss(), {}),
        (ValueError, "detach", model, iter([(IMAGES.clone().requires_grad_(), VALUES)]), nn.MSELoss(), {}),
    ]
    for kind, message, given, inputs, loss_fn, more in cases:
        with pytest.raises(kind, match=message):
            package.accumulate(given, inputs, loss_fn, **more)
        assert all(parameter.grad is None for parameter in given.parameters())
    # AND with frozen BatchNorm statistics, micro-batches are allowed
    package.accumulate(normalised, pieces(IMAGES, VALUES, [6, 7]), nn.MSELoss(), batchnorm="frozen")
    expected = whole(normalised.eval(), IMAGES, lambda outputs: nn.MSELoss()(outputs, VALUES))
    assert difference(normalised, expected[0], expected) <= 1e-13
