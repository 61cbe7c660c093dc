"""How far float32 itself is from float64: what batches in pieces are held against.

Rounding gives other gradients for each order of the samples, for each size of a piece (kernels for another size sum in
another order, and cuDNN takes other algorithms) and with other kernels for the same layer. With ReLU or max-pooling more
so: where an input is near the kink, rounding decides which side it is on, and one of these more or less is a jump. So one
plain run says little. The spread is the largest distance from float64 of several: the whole batch in other orders, with and
without cuDNN, and, against pieces of a size, by plain PyTorch with that size in each layer that treats samples alone.
"""

import contextlib

import torch
from torch.nn.modules.batchnorm import _BatchNorm

# Even if nothing is wrong, a run is beyond the largest of n others once in n + 1 times, and hundreds are compared. Distances
# of one kind lie within some ten percent of each other, or within few jumps; mistakes (a weight, a statistic, a sample) are
# of the gradient's own size.
MULTIPLE = 2.0
# A loss whose gradient takes one or two roundings may have none in one order and some in another.
FLOOR = 4 * torch.finfo(torch.float32).eps
ORDERS = 4


def orders(samples):
    """Several orders of the samples of a batch, the first as it is."""
    numbers = torch.Generator().manual_seed(0)
    yield torch.arange(samples)
    for _ in range(ORDERS - 1):
        yield torch.randperm(samples, generator=numbers)


def gradients(model):
    """All of them, in float64. Parameters without one have zeros."""
    parameters = [one for one in model.parameters() if one.requires_grad]
    parts = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    return torch.cat([part.double().flatten() for part in parts])


def distance(found, truth):
    """Relative."""
    return float((found - truth).norm() / truth.norm())


def spread(run, truth, samples):
    """The largest distance of `run(order)`, which returns gradients of a batch in that order."""
    found = []
    for kernel in kernels():
        with kernel:
            found += [distance(run(order), truth) for order in orders(samples)]
    return max(found)


def is_within(distance, spread):
    """NaN is not."""
    return distance <= MULTIPLE * spread + FLOOR


def kernels():
    """Contexts: with cuDNN, and without it."""
    yield contextlib.nullcontext()
    if torch.cuda.is_available():
        yield torch.backends.cudnn.flags(enabled=False)


@contextlib.contextmanager
def layers_in_pieces(model, size):
    """Each layer with parameters computes pieces of `size` samples, but for BatchNorm, which sees all. None: as it is."""
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
