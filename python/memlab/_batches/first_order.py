"""Backwards whose gradients have no graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Backward = Callable[..., Any]


def first_order(backward: Backward) -> Backward:
    """Decorates the backward of a function whose gradients have no graph: with ``create_graph=True`` it raises RuntimeError.

    (`once_differentiable` alone does not raise if the incoming gradient has no graph either.)
    """
    once: Backward = once_differentiable(backward)

    @functools.wraps(backward)
    def refusing(ctx: Any, *gradients: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "create_graph=True goes through outputs that are computed in pieces, whose gradients have no graph: "
                "gradients of gradients, as of a gradient penalty, would be left out. Compute that part from the model "
                "itself, within memlab.offload_activations if it does not fit"
            )
        return once(ctx, *gradients)

    return refusing
