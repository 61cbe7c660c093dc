"""Checks that a model gives the same outputs when the same samples go through it again, as replay requires."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from memlab._paging.torch_private import versions_of


class FirstOutputs:
    """The outputs of a batch's first forward. The caller may write into them, as ``outputs /= temperature`` does. Then only
    copies of some samples are compared."""

    def __init__(self, leaves: Sequence[Any], copied: range) -> None:
        """`leaves`: outputs of all samples. `copied`: the samples whose outputs are copied."""
        self._leaves = {
            index: leaf.detach()
            for index, leaf in enumerate(leaves)
            if isinstance(leaf, Tensor) and leaf.dtype.is_floating_point
        }
        self._versions = self._versions_now()
        self._copied = copied
        self._copies = {index: leaf[copied.start : copied.stop].clone() for index, leaf in self._leaves.items()}

    def check(self, results: Sequence[Any], rows: range) -> None:
        """Raises RuntimeError if the outputs of samples differ from the first forward."""
        versions = self._versions_now()
        for index, leaf in self._leaves.items():
            if self._copied.start <= rows.start and rows.stop <= self._copied.stop:
                begin = rows.start - self._copied.start
                first = self._copies[index][begin : begin + len(rows)]
            elif versions[index] == self._versions[index]:
                first = leaf[rows.start : rows.stop]
            else:
                continue
            if are_apart(first, results[index].detach(), 0.02):
                raise RuntimeError(
                    "the model returned other outputs for the same samples, random numbers and buffers: it keeps state "
                    "between forwards (a cache, a counter, its own random numbers), or the iterable yielded other "
                    "micro-batches the second time. Gradients would be wrong, so none were added"
                )

    def _versions_now(self) -> dict[int, int]:
        return dict(zip(self._leaves, versions_of(list(self._leaves.values())), strict=True))


def are_apart(one: Tensor, other: Tensor, share: float) -> bool:
    """True if the distance of two tensors exceeds `share` times the norm of the first."""
    one, other = one.double(), other.double()
    distance, bound = (one - other).norm(), share * one.norm() + 1e-12
    # Writes into zeroed memory: on a simulated card, whose kernels compute nothing, the result stays False.
    is_other = torch.zeros((), dtype=torch.bool, device=one.device)
    return bool(torch.logical_and(~(distance <= bound), bound.isfinite(), out=is_other))
