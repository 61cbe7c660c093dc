"""Measures the distance of float32 itself from float64, as the reference for micro-batches.

Rounding changes gradients with the order of the samples, the size of a micro-batch and the kernels of a layer. Kernels for
another size sum in another order, and cuDNN uses other algorithms. ReLU and max-pooling increase the effect: near the kink,
rounding decides the side of an input, and each change of side is a jump. A single plain run is therefore no reference. The
spread is the largest distance from float64 of several runs: the whole batch in other orders, with and without cuDNN, and,
for a micro-batch size, plain PyTorch with that size in each layer that treats samples alone.
"""

import contextlib

import torch
from torch.nn.modules.batchnorm import _BatchNorm

# Even without an error, a run exceeds the largest of n others once in n + 1 times, and hundreds are compared. Distances
# of one kind differ by about ten percent, or by a few jumps. Mistakes (a weight, a statistic, a sample) are as large as
# the gradient itself.
MULTIPLE = 2.0
# A loss whose gradient has one or two roundings may have none in one order and some in another.
FLOOR = 4 * torch.finfo(torch.float32).eps
ORDERS = 4


def orders(samples):
    """Several orders of the samples of a batch, the first unchanged."""
    numbers = torch.Generator().manual_seed(0)
    yield torch.arange(samples)
    for _ in range(ORDERS - 1):
        yield torch.randperm(samples, generator=numbers)


def gradients(model):
    """All gradients, in float64. Parameters without one have zeros."""
    parameters = [one for one in model.parameters() if one.requires_grad]
    parts = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    return torch.cat([part.double().flatten() for part in parts])


def distance(found, truth):
    """Relative distance."""
    return float((found - truth).norm() / truth.norm())


def spread(run, truth, samples):
    """Largest distance of `run(order)`, which returns gradients of a batch in that order."""
    found = []
    for kernel in kernels():
        with kernel:
            found += [distance(run(order), truth) for order in orders(samples)]
    return max(found)


def is_within(distance, spread):
    """Returns False for NaN."""
    return distance <= MULTIPLE * spread + FLOOR


def kernels():
    """Contexts with cuDNN, and without it."""
    yield contextlib.nullcontext()
    if torch.cuda.is_available():
        yield torch.backends.cudnn.flags(enabled=False)


@contextlib.contextmanager
def layers_in_pieces(model, size):
    """Makes layers with parameters compute `size` samples at a time, except BatchNorm, which sees all. None: no change."""
    layers = [] if size is None else [one for one in model.modules() if any(True for _ in one.parameters(recurse=False))]
    chosen = [one for one in layers if not isinstance(one, _BatchNorm)]
    for layer in chosen:
        whole = layer.forward
        layer.forward = lambda x, whole=whole: torch.cat([whole(part) for part in x.split(size)])
    try:
        yield
    finally:
        for layer in chosen:
            del layer.forward
