"""Generated models whose samples mix in every direction, or share random numbers, at strengths from large down to rounding:
each is refused, or its micro-batch gradients equal those of the full batch."""

import copy
import random

import memlab as package
import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional

BATCH, FEATURES, CLASSES = 11, 16, 5


def shifted(x, by):
    """Each sample's neighbour in the batch; zeros beyond its end."""
    return functional.pad(x, (0, 0, max(by, 0), max(-by, 0)))[max(-by, 0) :][: len(x)]


def kept_of_all(x):
    """1 for the half of the batch with the largest sums, like an expert layer with a capacity."""
    sums = x.sum(1)
    return (sums >= sums.sort(descending=True).values[(len(x) - 1) // 2]).to(x.dtype)[:, None]


def in_the_backward(x, strength):
    """A gradient that contains the mean of the batch. The forward mixes nothing."""
    y = x * 1
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient + strength * gradient.sum(0))
    return y


MIXING = {
    "earlier": lambda x, strength: x + strength * shifted(x, 1),
    "later": lambda x, strength: x + strength * shifted(x, -1),
    "all earlier": lambda x, strength: x + strength * x.cumsum(0),
    "all later": lambda x, strength: x + strength * x.flip(0).cumsum(0).flip(0),
    "neighbours": lambda x, strength: x + strength * (shifted(x, 1) - shifted(x, -1)),
    "mean": lambda x, strength: x - strength * x.mean(0),
    "deviation": lambda x, strength: x * (1 + strength * x.std(0, correction=0)),
    "the values alone": lambda x, strength: x - strength * x.mean(0).detach(),
    "sorting": lambda x, strength: x + strength * x.sort(0).values,
    "the largest": lambda x, strength: x + strength * x.amax(),
    "capacity": lambda x, strength: x * (1 + strength * kept_of_all(x)),
    "attention": lambda x, strength: x + strength * functional.softmax(x @ x.T, 1) @ x,
    "the backward": in_the_backward,
}
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


class Mixing(nn.Module):
    """A small network with a mixing function between its layers."""

    def __init__(self, between, dtype):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(7, FEATURES, dtype=dtype), nn.Linear(FEATURES, CLASSES, dtype=dtype)
        self.between = between

    def forward(self, x):
        return self.last(self.between(self.first(x).tanh()).tanh())


def both(model, inputs, labels, size):
    """Relative distance between micro-batch and full-batch gradients."""
    whole = copy.deepcopy(model)
    functional.cross_entropy(whole(inputs), labels).backward()
    package.accumulate(model, inputs, nn.CrossEntropyLoss(), targets=labels, micro_batch=size)
    pairs = [
        (one.grad.double(), other.grad.double()) for one, other in zip(model.parameters(), whole.parameters(), strict=True)
    ]
    return max(((one - other).norm() / other.norm()).item() for one, other in pairs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", MIXING)
def test_samples_that_meet_are_found_or_make_no_difference(kind, dtype):
    # (In float64 the trial rounds as much as the model.)
    rounding, allowed = torch.finfo(dtype).eps, 512 if dtype is torch.float64 else 16
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(BATCH, 7, generator=generator).to(dtype)
    labels = torch.randint(CLASSES, (BATCH,), generator=generator)
    refused = []
    # GIVEN a model whose samples mix, more and more weakly; WHEN a batch runs in micro-batches
    strengths = [10.0**-power for power in range(16)]
    for strength in strengths:
        model = Mixing(lambda x, strength=strength: MIXING[kind](x, strength), dtype)
        try:
            # THEN it is refused, or gradients equal the full batch's, up to rounding
            assert both(model, inputs, labels, 4) <= allowed * rounding, (kind, strength)
        except RuntimeError as error:
            assert "depend on which others are in its batch" in str(error)
            refused.append(strength)
    # AND only mixing above rounding is refused
    assert 1.0 in refused
    assert min(refused) >= rounding / 32


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(7, FEATURES, 2, batch_first=True, dropout=0.3)

    def forward(self, x):
        return self.layer(x)[0]


def transformer():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3, enable_nested_tensor=False)


APART = {
    "deep": (lambda: nn.Sequential(*[part for _ in range(30) for part in (nn.Linear(32, 32), nn.ReLU())]), (BATCH, 32)),
    "norms": (lambda: nn.Sequential(nn.Conv1d(4, 8, 3), nn.GroupNorm(2, 8), nn.GELU(), nn.InstanceNorm1d(8)), (BATCH, 4, 9)),
    "batchnorm that is frozen": (lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)).eval(), (BATCH, 8)),
    "recurrent": (Recurrent, (BATCH, 6, 7)),
    "transformer": (transformer, (BATCH, 5, 8)),
    "convolutions": (lambda: nn.Sequential(*[nn.Conv2d(3, 3, 3, padding=1) for _ in range(12)]), (BATCH, 3, 16, 16)),
    "a zero gradient": (lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8, bias=False), nn.Softmax(-1)), (BATCH, 8)),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", APART)
def test_samples_that_do_not_meet_are_not_refused(kind, dtype):
    # GIVEN models with independent samples; WHEN a batch runs in micro-batches of any size; THEN none is refused
    make, shape = APART[kind]
    for seed in range(3):
        torch.manual_seed(seed)
        inputs = torch.randn(shape).to(dtype)
        for size in (1, 2, 4, 7):
            package.accumulate(make().to(dtype), inputs, lambda outputs: outputs.square().mean(), micro_batch=size)


def with_a_row(x, strength):
    return functional.dropout(x, 0.2) * (1 + strength * functional.dropout(torch.ones_like(x[:1]), 0.2))


def with_dropped_weights(x, strength):
    return x + strength * functional.linear(x, functional.dropout(torch.eye(FEATURES).to(x), 0.3))


SHARED = {
    "a mask": lambda x, strength: x * (1 + strength * torch.empty(FEATURES, device=x.device).bernoulli_(0.7).to(x)),
    "a mask of one row": with_a_row,
    "weights": with_dropped_weights,
    "noise": lambda x, strength: x + strength * torch.randn(FEATURES, device=x.device).to(x),
    "a layer": lambda x, strength: x if torch.rand([], device=x.device) < strength / 2 else x * 2,
    "an order": lambda x, strength: x + strength * x[:, torch.randperm(FEATURES, device=x.device)],
    "Python's": lambda x, strength: x * (1 + strength * random.random()),
    "NumPy's": lambda x, strength: x + strength * torch.tensor(numpy.random.rand(FEATURES)).to(x),
}


def in_pieces(between, dtype, device="cpu"):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(BATCH, 7, generator=generator).to(device, dtype)
    package.accumulate(Mixing(between, dtype).to(device), inputs, lambda outputs: outputs.square().mean(), micro_batch=4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", SHARED)
def test_random_numbers_of_all_samples_are_found_or_make_no_difference(kind, dtype):
    # GIVEN a model whose samples share random numbers, with less and less effect; WHEN a batch runs in micro-batches
    for power in range(16):
        strength, before = 10.0**-power, (random.getstate(), numpy.random.get_state()[1].tolist())
        # THEN it is refused while the effect exceeds rounding
        if strength >= 16 * torch.finfo(dtype).eps:
            with pytest.raises(RuntimeError, match="all samples of a batch share random numbers of the model"):
                in_pieces(lambda x, strength=strength: SHARED[kind](x, strength), dtype)
            # AND the program's random number state is as before
            assert before == (random.getstate(), numpy.random.get_state()[1].tolist())
    # AND random numbers without effect are allowed
    in_pieces(lambda x: SHARED[kind](x, 0.0), dtype)


def one_by_one(x):
    return torch.stack([row + torch.randn(FEATURES, device=x.device).to(x) for row in x])


def by_a_seed(x):
    """Random numbers of each sample from a separate generator, as in cuDNN's recurrent layers."""
    seed = torch.empty((), dtype=torch.long).random_()
    return x + torch.randn(x.shape, generator=torch.Generator().manual_seed(int(seed))).to(x)


def of_each(x):
    return x * torch.rand(len(x), 1, device=x.device).to(x) + torch.tensor(numpy.random.rand(*x.shape)).to(x)


APART_AT_RANDOM = {
    "dropout": nn.Dropout(0.5),
    "a path": lambda x: x * torch.empty(len(x), 1, device=x.device).bernoulli_(0.8).to(x),
    "one by one": one_by_one,
    "of each": of_each,
    "by a seed": by_a_seed,
    "like": lambda x: functional.rrelu(x + torch.randn_like(x), training=True),
    "attention": lambda x: functional.scaled_dot_product_attention(*[x.view(len(x), 2, 4, 2)] * 3, dropout_p=0.3).flatten(1),
    "gumbel": lambda x: functional.gumbel_softmax(x, hard=True),
}


@pytest.mark.parametrize("kind", APART_AT_RANDOM)
def test_random_numbers_of_each_sample_are_not_refused(kind):
    # GIVEN random numbers for each sample; WHEN a batch runs in micro-batches, THEN it is not refused
    in_pieces(APART_AT_RANDOM[kind], torch.float32)
