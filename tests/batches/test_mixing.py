"""Models whose samples mix outside BatchNorm: micro-batches would be wrong, and a trial detects it."""

import warnings

import memlab as package
import numpy
import pytest
import torch
from criteria import BATCH, CLASSES, IMAGES, LABELS, contrastive, model_for
from memlab._batches import mixing
from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("in_double_precision")
CRITERION = nn.CrossEntropyLoss()


class Around(nn.Module):
    """A given layer between layers with dropout."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.dropout, self.last = nn.Linear(7, 16), nn.Dropout(0.5), nn.Linear(16, CLASSES)
        self.between = between

    def forward(self, x):
        return self.last(self.between(self.dropout(self.first(x).tanh())))


class AmongSamples(nn.Module):
    """Attention that treats the batch as a sequence."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.1)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class InTraining(nn.Module):
    """A custom normalisation, with functional dropout beside it."""

    def forward(self, x):
        return functional.dropout(x - x.mean(0), 0.1, self.training)


def without_mean(x):
    return x - x.mean(0)


def ways(model, size):
    """A batch in micro-batches: with a mean, with a loss of all outputs, in a custom loop, and from an iterable."""
    yield lambda: package.accumulate(model, IMAGES, CRITERION, targets=LABELS, micro_batch=size)
    yield lambda: package.accumulate(model, IMAGES, contrastive, micro_batch=size)
    yield lambda: package.InfinityBatch(model, verbose=False, micro_batch=size).batch_(IMAGES)
    yield lambda: package.accumulate(model, zip(IMAGES.split(size), LABELS.split(size), strict=True), CRITERION)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("between", [lambda: without_mean, AmongSamples, InTraining], ids=["mean", "attention", "own"])
def test_models_whose_samples_meet_are_refused(between, size):
    # GIVEN a model that mixes samples, with dropout; WHEN a batch runs in micro-batches
    torch.manual_seed(0)
    # (An iterable of single samples has no two samples for the trial.)
    for index in range(4 if size > 1 else 3):
        model = Around(between())
        # THEN it is refused, each time, before gradients exist
        for _ in range(2):
            with pytest.raises(RuntimeError, match="depend on which others are in its batch"):
                list(ways(model, size))[index]()
        assert all(one.grad is None for one in model.parameters())
    # AND a full batch is not
    package.accumulate(Around(between()), IMAGES, contrastive, micro_batch=BATCH)


def test_beside_batchnorm():
    # GIVEN BatchNorm, which lockstep computes exactly, and a mean over samples, which it does not
    model = nn.Sequential(nn.BatchNorm1d(7), Around(without_mean))
    with pytest.raises(RuntimeError, match="depend on which others"):
        package.accumulate(model, IMAGES, CRITERION, targets=LABELS, micro_batch=4)
    assert torch.equal(model[0].running_mean, torch.zeros(7)) and model[0].num_batches_tracked == 0


def test_inexact_gradients_are_warned_about_once():
    # GIVEN exact=False; WHEN a model mixes samples; THEN it runs, with one warning
    model = Around(without_mean)
    with pytest.warns(UserWarning, match="not exact: the model's outputs for a sample depend on which others"):
        package.accumulate(model, IMAGES, CRITERION, targets=LABELS, micro_batch=4, exact=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        package.accumulate(model, IMAGES, CRITERION, targets=LABELS, micro_batch=4, exact=False)
    # AND without exact=False it is refused again
    with pytest.raises(RuntimeError, match="depend on which others"):
        package.accumulate(model, IMAGES, CRITERION, targets=LABELS, micro_batch=4)


def test_samples_that_are_compared_within_the_model():
    # GIVEN a model that returns the similarity of its samples, of which micro-batches contain only a part
    model = Around(lambda x: x)
    model.register_forward_hook(lambda module, arguments, output: output @ output.T)
    with pytest.raises(RuntimeError, match="compare samples in the loss"):
        package.accumulate(model, IMAGES, lambda outputs: outputs.logsumexp(1).mean(), micro_batch=4)


class States(nn.Module):
    """Returns the last states of its layers, whose number may equal the micro-batch size."""

    def __init__(self, layers):
        super().__init__()
        self.recurrent = nn.LSTM(7, 4, layers, batch_first=True, dropout=0.2)

    def forward(self, x):
        outputs, (states, _) = self.recurrent(x[:, None])
        return outputs[:, -1], states


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_outputs_whose_first_dimension_is_a_pieces_size_by_chance(layers):
    # GIVEN a batch in equal micro-batches, and an output with one row per layer, as many as a micro-batch has samples
    torch.manual_seed(0)
    for size in (layers, 1, 5):
        model = States(layers)
        # THEN it is refused: it has no row for each sample
        with pytest.raises(ValueError, match="Its first dimension must be the samples"):
            package.InfinityBatch(model, verbose=False, micro_batch=size).batch_(IMAGES[: 3 * size])


class Scaled(nn.Module):
    """Returns a factor for its outputs, as CLIP does."""

    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(7, CLASSES), nn.Parameter(torch.ones(()))

    def forward(self, x):
        return {"logits": self.layer(x), "logit_scale": self.scale.exp()}


def test_outputs_and_inputs_that_cannot_be_cut_are_named():
    # GIVEN a parameter as an output, images of several sizes in a list, and packed sequences
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 7), torch.randn(2, 7)])
    images = [torch.randn(3, 8, 8), torch.randn(3, 6, 9), torch.randn(3, 5, 5)]
    pictured = Around(nn.Identity())
    pictured.register_forward_pre_hook(
        lambda module, arguments: (torch.stack([one.mean((0, 1))[:7] for one in arguments[0]]),)
    )
    # THEN each is refused by name, with a fix
    with pytest.raises(ValueError, match=r"'logit_scale' is a tensor of shape .*leave it out of the outputs"):
        package.accumulate(Scaled(), IMAGES, lambda outputs: outputs["logits"].logsumexp(1).mean(), micro_batch=4)
    with pytest.raises(ValueError, match=r"the argument 'x' is a list of tensors.*make the list of it"):
        package.accumulate(pictured, {"x": images}, CRITERION, targets=LABELS[:3], micro_batch=1)
    with pytest.raises(ValueError, match=r"the argument 'x' is a PackedSequence.*pack_padded_sequence"):
        package.accumulate(Around(nn.Identity()), {"x": packed}, CRITERION, targets=LABELS[:2], micro_batch=1)


class UpTo(nn.Module):
    """Adds up the first entries of each sample."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.last = nn.Linear(1, CLASSES)

    def forward(self, x, lengths):
        return self.last(
            torch.stack([row[: int(length)].sum(0, keepdim=True) for row, length in zip(x, lengths, strict=True)])
        )


@pytest.mark.parametrize("kind", [list, tuple, numpy.array, torch.tensor, lambda lengths: [str(one) for one in lengths]])
def test_values_of_samples_are_cut_with_them(kind):
    # GIVEN a number or a text for each sample; WHEN a batch runs in micro-batches
    lengths = [1 + index % 7 for index in range(BATCH)]
    ours, theirs = UpTo(), UpTo()
    package.accumulate(ours, {"x": IMAGES, "lengths": kind(lengths)}, CRITERION, targets=LABELS, micro_batch=4)
    # THEN each sample keeps its own
    CRITERION(theirs(IMAGES, lengths), LABELS).backward()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


class Balanced(nn.Module):
    """Returns its loss, in which the balance of experts is too small to detect."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.last = nn.Linear(7, 4), nn.Linear(7, CLASSES)

    def forward(self, x, labels):
        shares = self.gate(x).softmax(1).mean(0)
        return {"loss": functional.cross_entropy(self.last(x), labels) + 1e-7 * shares.square().sum()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_balance_of_experts_is_seen_in_its_gradients(dtype):
    model = Balanced().to(dtype)
    with pytest.raises(ValueError, match="or its gradients are none, as with a loss that balances experts"):
        package.accumulate(model, {"x": IMAGES.to(dtype), "labels": LABELS}, micro_batch=1)
    assert all(one.grad is None for one in model.parameters())


class Remembering(nn.Module):
    """Returns different outputs at each call."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class Trimming(nn.Module):
    """Trims trailing zeros that all samples of the batch share."""

    def forward(self, x):
        length = int((x > 0).sum(1).max())
        x = x * (torch.arange(x.shape[1]) < (x > 0).sum(1, keepdim=True))
        return x[:, :length].sum(1, keepdim=True).expand(-1, 16)


def test_others_are_not_taken_for_such():
    # GIVEN models that only seem to mix: always random, stateful, requiring several samples, with power iterations, or with
    # outputs as long as the longest sample; WHEN they are tried
    def several(x):
        if len(x) < 4:
            raise ValueError("too few")
        return x

    torch.manual_seed(0)
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))
    half = Around(nn.Identity()).to(torch.bfloat16)
    always = [lambda x: functional.dropout(x, 0.5), Remembering(), several, spectral, Trimming(), nn.LayerNorm(16)]
    for between in always:
        model = Around(between)
        random, buffers = torch.get_rng_state(), [one.clone() for one in model.buffers()]
        batch = mixing.Batch.of(model, IMAGES, micro_batch=4, memory="auto", exact=True)
        mixing.look_for_mixing(batch, joins=True)
        # THEN none is refused, and the trial leaves no trace
        assert torch.equal(torch.get_rng_state(), random)
        assert all(torch.equal(one, other) for one, other in zip(model.buffers(), buffers, strict=True))
        assert all(module.training for module in model.modules())
    package.accumulate(half, IMAGES.to(torch.bfloat16), CRITERION, targets=LABELS, micro_batch=4)
    package.accumulate(model_for(CLASSES), IMAGES, contrastive, micro_batch=4)


@pytest.mark.parametrize("compiled", [lambda model: torch.compile(model, backend="eager"), lambda model: model])
def test_compiled_models_are_tried_too(compiled):
    # GIVEN a model that is compiled, in whole or in part; WHEN its samples mix; THEN it is refused
    model = Around(without_mean)
    model.first = torch.compile(model.first, backend="eager")
    with pytest.raises(RuntimeError, match="depend on which others"):
        package.accumulate(compiled(model), IMAGES, CRITERION, targets=LABELS, micro_batch=4)
    # AND if they do not, micro-batches give full-batch gradients
    ours, theirs = Around(nn.Identity()).eval(), Around(nn.Identity()).eval()
    package.accumulate(compiled(ours), IMAGES, CRITERION, targets=LABELS, micro_batch=4)
    CRITERION(theirs(IMAGES), LABELS).backward()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


class Tabled(nn.Module):
    """Keeps a table in its first inputs' dtype, and counts its forwards."""

    def __init__(self):
        super().__init__()
        self.layer, self.table, self.calls, self.seen = nn.Linear(7, CLASSES), None, 0, []

    def forward(self, x):
        warnings.warn("a forward", stacklevel=1)
        self.calls += 1
        self.seen.append(len(x))
        if self.table is None:
            self.table = x.new_ones(7)
        return self.layer(x * self.table)


def test_nothing_is_left_of_the_trial():
    # GIVEN a model that keeps its forward's results; WHEN a batch runs through it
    model = Tabled().float()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        package.accumulate(model, IMAGES.float(), CRITERION, targets=LABELS, micro_batch=4)
    # THEN its tables, counts and warnings come from the micro-batches alone
    assert len(heard) == model.calls
    assert model.table.dtype == torch.float32
    assert model.calls == len(model.seen) == -(-BATCH // 4)
