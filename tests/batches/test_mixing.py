"""Models whose samples meet, other than in BatchNorm: pieces would be wrong, which is found by trying."""

import warnings

import memlab as package
import pytest
import torch
from criteria import BATCH, CLASSES, IMAGES, LABELS, contrastive, model_for
from memlab._batches import mixing
from torch import nn
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("in_double_precision")
CRITERION = nn.CrossEntropyLoss()


class Around(nn.Module):
    """Something between layers, which have dropout."""

    def __init__(self, between):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.dropout, self.last = nn.Linear(7, 16), nn.Dropout(0.5), nn.Linear(16, CLASSES)
        self.between = between

    def forward(self, x):
        return self.last(self.between(self.dropout(self.first(x).tanh())))


class AmongSamples(nn.Module):
    """Attention that takes the batch for a sequence."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.1)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class InTraining(nn.Module):
    """A normalisation of one's own, with functional dropout beside it."""

    def forward(self, x):
        return functional.dropout(x - x.mean(0), 0.1, self.training)


def without_mean(x):
    return x - x.mean(0)


def ways(model, size):
    """A batch in pieces: by a mean, by a loss of all outputs, in a loop of one's own, and from an iterable."""
    yield lambda: package.accumulate(model, IMAGES, CRITERION, targets=LABELS, micro_batch=size)
    yield lambda: package.accumulate(model, IMAGES, contrastive, micro_batch=size)
    yield lambda: package.InfinityBatch(model, verbose=False, micro_batch=size).batch_(IMAGES)
    yield lambda: package.accumulate(model, zip(IMAGES.split(size), LABELS.split(size), strict=True), CRITERION)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("between", [lambda: without_mean, AmongSamples, InTraining], ids=["mean", "attention", "own"])
def test_models_whose_samples_meet_are_refused(between, size):
    # GIVEN a model that mixes samples, with dropout; WHEN a batch goes through it in pieces
    torch.manual_seed(0)
    # (From an iterable that gives one sample at a time there are no two to try.)
    for index in range(4 if size > 1 else 3):
        model = Around(between())
        # THEN it is refused, each time, before there are gradients
        for _ in range(2):
            with pytest.raises(RuntimeError, match="depend on which others are in its batch"):
                list(ways(model, size))[index]()
        assert all(one.grad is None for one in model.parameters())
    # AND a whole batch is not
    package.accumulate(Around(between()), IMAGES, contrastive, micro_batch=BATCH)


def test_beside_batchnorm():
    # GIVEN BatchNorm, which pieces in lockstep compute exactly, and a mean over samples, which they do not
    model = nn.Sequential(nn.BatchNorm1d(7), Around(without_mean))
    with pytest.raises(RuntimeError, match="depend on which others"):
        package.accumulate(model, IMAGES, CRITERION, targets=LABELS, micro_batch=4)
    assert torch.equal(model[0].running_mean, torch.zeros(7)) and model[0].num_batches_tracked == 0


def test_what_is_not_exact_is_said():
    # GIVEN exact=False; WHEN a model mixes samples; THEN it is computed, and said once
    model = Around(without_mean)
    with pytest.warns(UserWarning, match="not exact: the model's outputs for a sample depend on which others"):
        package.accumulate(model, IMAGES, CRITERION, targets=LABELS, micro_batch=4, exact=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        package.accumulate(model, IMAGES, CRITERION, targets=LABELS, micro_batch=4, exact=False)
    # AND it is refused again where that is not allowed
    with pytest.raises(RuntimeError, match="depend on which others"):
        package.accumulate(model, IMAGES, CRITERION, targets=LABELS, micro_batch=4)


def test_samples_that_are_compared_within_the_model():
    # GIVEN a model that returns how alike its samples are: pieces have a part of that
    model = Around(lambda x: x)
    model.register_forward_hook(lambda module, arguments, output: output @ output.T)
    with pytest.raises(RuntimeError, match="compare samples in the loss"):
        package.accumulate(model, IMAGES, lambda outputs: outputs.logsumexp(1).mean(), micro_batch=4)


class States(nn.Module):
    """Returns the last states of its layers: as many as a piece may have samples."""

    def __init__(self, layers):
        super().__init__()
        self.recurrent = nn.LSTM(7, 4, layers, batch_first=True, dropout=0.2)

    def forward(self, x):
        outputs, (states, _) = self.recurrent(x[:, None])
        return outputs[:, -1], states


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_outputs_whose_first_dimension_is_a_pieces_size_by_chance(layers):
    # GIVEN a batch in equal pieces, and an output that has as many layers as these samples
    torch.manual_seed(0)
    for size in (layers, 1, 5):
        model = States(layers)
        # THEN it is refused: it has no row for each sample
        with pytest.raises(ValueError, match="Its first dimension must be the samples"):
            package.InfinityBatch(model, verbose=False, micro_batch=size).batch_(IMAGES[: 3 * size])


class Remembering(nn.Module):
    """Gives something else whenever it is called."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class Trimming(nn.Module):
    """Leaves out what no sample of the batch has."""

    def forward(self, x):
        length = int((x > 0).sum(1).max())
        return x[:, :length].sum(1, keepdim=True).expand(-1, 16)


def test_others_are_not_taken_for_such():
    # GIVEN models that only look as if: with random numbers always, with a memory, that need several samples, with
    # power iterations, with outputs as long as the longest sample; WHEN they are tried
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
        # THEN nothing is refused, and nothing is left of it
        assert torch.equal(torch.get_rng_state(), random)
        assert all(torch.equal(one, other) for one, other in zip(model.buffers(), buffers, strict=True))
        assert all(module.training for module in model.modules())
    package.accumulate(half, IMAGES.to(torch.bfloat16), CRITERION, targets=LABELS, micro_batch=4)
    package.accumulate(model_for(CLASSES), IMAGES, contrastive, micro_batch=4)
