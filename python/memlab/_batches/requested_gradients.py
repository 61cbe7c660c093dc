"""The gradients that a caller's backward requests from a batch: their parameters and destination."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from memlab._batches.parameter_hooks import held
from memlab._paging.torch_private import has_gradient_hook, will_run


class RequestedGradients:
    """The gradients of parameters that a backward requests. Each parameter's graph begins at an input of the running
    function.

    ``loss.backward()`` adds to the gradients of all parameters, as the pieces do directly. Other gradients are returned to
    autograd: those that ``torch.autograd.grad`` requests, and those with hooks (``parameter.register_hook``), which then see
    the whole batch's gradient. Gradients that are not requested stay unchanged.
    """

    def __init__(self, ctx: Any, parameters: Sequence[Tensor]) -> None:
        """`ctx`: the context of the function whose backward is running. Its last inputs are the parameters."""
        nodes = [node for node, _ in ctx.next_functions]
        runs = [will_run(node) for node in nodes[len(nodes) - len(parameters) :]]
        self._parameters = parameters
        self._is_returned = [
            one is None or (one and has_gradient_hook(parameter)) for one, parameter in zip(runs, parameters, strict=True)
        ]
        #: The parameters whose gradients pieces add to; None: all.
        self.wanted: list[Tensor] | None = None
        if not all(one is not False for one in runs):
            self.wanted = [parameter for one, parameter in zip(runs, parameters, strict=True) if one is not False]
        self._gradients: list[Tensor | None] = []

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Runs a block in which the parameters to be returned begin without a gradient, and takes the gradients it adds."""
        taken = [one for one, is_returned in zip(self._parameters, self._is_returned, strict=True) if is_returned]
        before = [one.grad for one in taken]
        for one in taken:
            one.grad = None
        try:
            with held(taken):
                yield
            self._gradients = [
                one.grad if is_returned else None
                for one, is_returned in zip(self._parameters, self._is_returned, strict=True)
            ]
        finally:
            for one, gradient in zip(taken, before, strict=True):
                one.grad = gradient

    def returned(self) -> list[Tensor | None]:
        """The values that the function's backward returns for the parameters."""
        gradients, self._gradients = self._gradients, []
        return gradients
