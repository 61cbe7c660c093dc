"""Hooks on parameters (``parameter.register_hook``), which must run once, with the gradient of the whole batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from memlab._batches.ranks import Ranks
from memlab._paging.torch_private import gradient_hooks


@contextmanager
def held(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Runs a block in which these hooks do not run."""
    # Emptied rather than removed: autograd holds these dictionaries, and the handles of hooks refer to them.
    kept = [(hooks, dict(hooks)) for hooks in map(gradient_hooks, parameters) if hooks]
    for hooks, _ in kept:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in kept:
            hooks.update(before)


@contextmanager
def once_for_all_pieces(parameters: Sequence[Tensor], ranks: Ranks) -> Iterator[None]:
    """Runs a block with the backwards of one batch's pieces, and then these hooks with the whole gradients. The returned
    gradients are added to those from before.

    Raises:
        RuntimeError: a parameter has such a hook, and ranks average gradients in the last of these backwards.
    """
    hooked = [parameter for parameter in parameters if gradient_hooks(parameter)]
    if not hooked:
        yield
        return
    if ranks.are_several:
        raise RuntimeError(
            "a parameter has a hook (register_hook), which would see the gradient of one micro-batch, or the ranks' "
            "average: change the gradients after memlab.accumulate instead"
        )
    before = [parameter.grad for parameter in hooked]
    for parameter in hooked:
        parameter.grad = None
    try:
        with held(hooked):
            yield
        whole = [(parameter, parameter.grad) for parameter in hooked if parameter.grad is not None]
    finally:
        for parameter, gradient in zip(hooked, before, strict=True):
            parameter.grad = gradient
    if whole:
        torch.autograd.backward(*zip(*whole, strict=True))
