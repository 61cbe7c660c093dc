"""BatchNorm in training, which mixes all samples of a batch: modes that avoid or approximate this."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from memlab._batches.nested import Samples
from memlab._paging.torch_private import BatchNorm

#: Modes of BatchNorm: the values of `batchnorm=`.
CHOICES = ("exact", "ghost", "frozen", "refuse")


def check_choice(batchnorm: str) -> None:
    """Raises ValueError if the name is not one of the choices."""
    if batchnorm not in CHOICES:
        raise ValueError(f"batchnorm={batchnorm!r}: must be one of {', '.join(map(repr, CHOICES))}")


def mixing_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers of a model that mix the samples of a batch, by name: in training, or without running statistics."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, BatchNorm) and (module.training or module.running_mean is None)
    }


def tracking_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers whose outputs are independent of other samples but whose running statistics are not, by name."""
    kinds = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, kinds) and module.training and module.running_mean is not None
    }


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Runs a block in which BatchNorm layers keep their statistics and normalise with them."""
    layers = [layer for layer in mixing_layers(model).values() if layer.training]
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        for layer in layers:
            layer.train()


@contextmanager
def ghost(model: nn.Module, samples: int) -> Iterator[None]:
    """Runs a block in which each piece of a batch is normalised with its own statistics (ghost batch normalisation).

    Running statistics move as far as one whole batch of `samples` would move them: a piece with share s of the samples has
    the momentum 1 - (1 - m)^s.
    """
    layers: list[Any] = list(mixing_layers(model).values())
    momenta = [layer.momentum for layer in layers]
    counters: list[Tensor | None] = [layer.num_batches_tracked for layer in layers]
    counted = [None if counter is None else counter.clone() for counter in counters]

    def piece_begins(_module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        share = len(Samples((inputs, keywords))) / samples
        for layer, momentum in zip(layers, momenta, strict=True):
            if momentum is not None:
                layer.momentum = 1 - (1 - momentum) ** share

    hook = model.register_forward_pre_hook(piece_begins, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
        with torch.no_grad():
            for layer, momentum, counter, before in zip(layers, momenta, counters, counted, strict=True):
                layer.momentum = momentum
                if counter is not None and before is not None:
                    counter.copy_(before + 1)
