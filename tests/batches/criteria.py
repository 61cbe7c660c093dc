"""Criteria with matching outputs and targets, and the full-batch result, for micro-batch tests."""

import functools

import torch
from torch import nn
from torch.nn import functional

BATCH, CLASSES = 13, 5
# Micro-batch sizes: even except for a remainder, uneven, and with a remainder of one sample.
PIECES = [5, 4, 6, 1]


def numbers(seed):
    return torch.Generator().manual_seed(seed)


def model_for(outputs):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, outputs))


IMAGES = torch.randn(BATCH, 7, generator=numbers(1), dtype=torch.float64)
LABELS = torch.randint(0, CLASSES, (BATCH,), generator=numbers(2))
# The first five are ignored: with micro-batches of 4 or 5, one has no target.
SOME_IGNORED = LABELS.where(torch.arange(BATCH) >= 5, -100)
WEIGHTS = torch.tensor([0.3, 2.0, 1.0, 0.7, 1.9], dtype=torch.float64)
VALUES = torch.randn(BATCH, CLASSES, generator=numbers(3), dtype=torch.float64)
SHARES = torch.rand(BATCH, CLASSES, generator=numbers(4), dtype=torch.float64).softmax(-1)
SIGNS = torch.randint(0, 2, (BATCH,), generator=numbers(5)) * 2 - 1
ZEROS_AND_ONES = torch.randint(0, 2, (BATCH, CLASSES), generator=numbers(6)).double()


class Given(nn.Module):
    """A model that passes its single output tensor to a criterion in the form that the criterion expects."""

    def __init__(self, form, first=None):
        super().__init__()
        self.first, self.inner, self.form = first, model_for(CLASSES), form

    def forward(self, x):
        return self.form(self.inner(x if self.first is None else self.first(x)))


def same(outputs):
    return outputs


def three(outputs):
    return outputs, outputs.flip(1), outputs.roll(1, 1)


def two(outputs):
    return outputs, outputs.flip(1)


def two_numbers(outputs):
    return outputs[:, 0], outputs[:, 1]


CRITERIA = {
    "cross entropy": (nn.CrossEntropyLoss(), same, LABELS),
    "cross entropy, ignored": (nn.CrossEntropyLoss(), same, SOME_IGNORED),
    "cross entropy, weights": (nn.CrossEntropyLoss(weight=WEIGHTS), same, SOME_IGNORED),
    "cross entropy, smoothing": (nn.CrossEntropyLoss(label_smoothing=0.1), same, SOME_IGNORED),
    "cross entropy, weights and smoothing": (nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1), same, SOME_IGNORED),
    "cross entropy, probabilities": (nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1), same, SHARES),
    "cross entropy, sum": (nn.CrossEntropyLoss(reduction="sum"), same, SOME_IGNORED),
    "cross entropy, function": (functools.partial(functional.cross_entropy, ignore_index=2), same, LABELS),
    "negative log-likelihood": (nn.NLLLoss(weight=WEIGHTS), lambda x: x.log_softmax(-1), SOME_IGNORED),
    "divergence by sample": (nn.KLDivLoss(reduction="batchmean"), lambda x: x.log_softmax(-1), SHARES),
    "divergence": (nn.KLDivLoss(), lambda x: x.log_softmax(-1), SHARES),
    "squares": (nn.MSELoss(), same, VALUES),
    "differences": (nn.L1Loss(), same, VALUES),
    "huber": (nn.HuberLoss(delta=0.5), same, VALUES),
    "smooth differences": (nn.SmoothL1Loss(), same, VALUES),
    "binary": (nn.BCELoss(), torch.sigmoid, SHARES),
    "binary with logits": (nn.BCEWithLogitsLoss(pos_weight=WEIGHTS), same, SHARES),
    "poisson": (nn.PoissonNLLLoss(), same, VALUES.abs()),
    "gaussian": (nn.GaussianNLLLoss(), same, (VALUES, VALUES.square() + 0.1)),
    "hinge": (nn.HingeEmbeddingLoss(), lambda x: x[:, 0], SIGNS),
    "soft margin": (nn.SoftMarginLoss(), lambda x: x[:, 0], SIGNS),
    "labels": (nn.MultiLabelSoftMarginLoss(weight=WEIGHTS), same, ZEROS_AND_ONES),
    "labels, margin": (nn.MultiLabelMarginLoss(), same, torch.stack([LABELS, *[torch.full_like(LABELS, -1)] * 4], 1)),
    "margin": (nn.MultiMarginLoss(weight=WEIGHTS), same, LABELS),
    "cosine": (nn.CosineEmbeddingLoss(margin=0.2), two, SIGNS),
    "ranking": (nn.MarginRankingLoss(margin=0.3), two_numbers, SIGNS),
    "triplets": (nn.TripletMarginLoss(), three, None),
    "triplets, distance": (nn.TripletMarginWithDistanceLoss(), three, None),
}


def whole(model, inputs, loss):
    """Loss and gradients of the full batch in one pass."""
    value = loss(model(inputs))
    gradients = torch.autograd.grad(value, list(model.parameters()))
    return value.detach(), list(gradients)


def difference(model, value, expected):
    """Sum of the relative errors of the loss and of all gradients; NaN if one of them is NaN."""
    loss, gradients = expected
    ours = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    theirs = torch.cat([gradient.flatten() for gradient in gradients])
    return float((ours - theirs).norm() / theirs.norm() + (value - loss).abs() / loss.abs())


def contrastive(outputs):
    """Contrasts each sample with all others."""
    first, second = functional.normalize(outputs[:, :2], dim=-1), functional.normalize(outputs[:, 2:4], dim=-1)
    return functional.cross_entropy(first @ second.T / 0.1, torch.arange(len(outputs)))
