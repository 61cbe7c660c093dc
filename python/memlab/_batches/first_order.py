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
                "create_graph=True needs gradients of gradients, as for a gradient penalty, but outputs computed in "
                "micro-batches have none. Compute that part from the model itself, within memlab.offload_activations if it "
                "does not fit"
            )
        return once(ctx, *gradients)

    return refusing
