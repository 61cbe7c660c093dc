"""Gradients during accumulation over the pieces of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from memlab._paging.torch_private import versions_of

# From this number of pieces on, a sum in half precision loses more than the rounding of the whole batch's gradient.
PIECES_FOR_SUMS = 4

_HALVES = (torch.float16, torch.bfloat16)


class Marks:
    """The gradients of parameters at a point in time, and their versions: PyTorch adds in place."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._grads = [parameter.grad for parameter in parameters]
        self._versions = self._versions_now()

    def untouched(self) -> list[Tensor]:
        """Parameters whose gradients have not changed since."""
        rows = zip(self._parameters, self._grads, self._versions, self._versions_now(), strict=True)
        return [parameter for parameter, grad, then, now in rows if parameter.grad is grad and then == now]

    def _versions_now(self) -> list[int]:
        grads = [parameter.grad for parameter in self._parameters]
        versions = iter(versions_of([grad for grad in grads if grad is not None]))
        return [0 if grad is None else next(versions) for grad in grads]


class WideSums:
    """Sums in float32 of the gradients of parameters in half precision: 4 bytes for each of their elements.

    >>> weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    >>> sums = WideSums([weight])
    >>> for _ in range(1000):
    ...     weight.grad = torch.full_like(weight, 0.25)
    ...     sums.take()
    >>> sums.give_back()
    >>> weight.grad
    tensor([250.], dtype=torch.bfloat16)
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.dtype in _HALVES]
        self._sums: list[Tensor | None] = [None] * len(self._parameters)
        self.take()

    @staticmethod
    def bytes_for(parameters: Iterable[Tensor]) -> int:
        """Bytes of the sums for these parameters."""
        return sum(4 * parameter.numel() for parameter in parameters if parameter.dtype in _HALVES)

    def take(self) -> None:
        """Adds the gradients to the sums, and clears them."""
        for index in range(len(self._parameters)):
            self._take(index)

    def take_each(self) -> list[RemovableHandle]:
        """Registers hooks that take each gradient as soon as a backward has added it, until they are removed."""
        return [
            parameter.register_post_accumulate_grad_hook(partial(self._taken, index))
            for index, parameter in enumerate(self._parameters)
        ]

    def _taken(self, index: int, parameter: Tensor) -> None:
        self._take(index)

    def _take(self, index: int) -> None:
        parameter, total = self._parameters[index], self._sums[index]
        grad = parameter.grad
        if grad is not None:
            self._sums[index] = grad.float() if total is None else total.add_(grad)
            parameter.grad = None

    def scale(self, factor: Tensor | float) -> None:
        """Multiplies the sums."""
        for total in self._sums:
            if total is not None:
                total.mul_(factor)

    def give_back(self) -> None:
        """Sets the parameters' gradients to the sums."""
        for parameter, total in zip(self._parameters, self._sums, strict=True):
            if total is not None:
                parameter.grad = total.to(parameter.dtype)
        self._sums = [None] * len(self._parameters)
