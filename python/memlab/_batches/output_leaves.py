"""Outputs without a graph, as inputs of a loss."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function


def as_output(leaf: Any) -> Any:
    """Returns a leaf as the result of an operation, in the same memory. PyTorch forbids writing into leaves, and a loss may
    write into its outputs (``outputs /= temperature``)."""
    return _Output.apply(leaf) if isinstance(leaf, Tensor) and leaf.requires_grad else leaf


class _Output(Function):
    @staticmethod
    def forward(ctx: Any, leaf: Tensor) -> Tensor:
        return leaf.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        return gradient
