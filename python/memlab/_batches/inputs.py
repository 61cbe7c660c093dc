"""Gradients of a batch's inputs, for inputs that another model has computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from memlab._batches.nested import Samples


class InputGradients:
    """Gradients of the inputs of a batch, collected piece by piece."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._wanted = [
            index for index, leaf in enumerate(samples.leaves) if isinstance(leaf, Tensor) and leaf.requires_grad
        ]
        self._leaves: dict[int, Tensor] = {}
        self._whole: dict[int, Tensor] = {}

    def piece(self, rows: range, device: torch.device) -> Any:
        """The samples of a piece, detached from their graphs."""
        return self.separate(self._samples.piece(rows, device))

    def separate(self, piece: Any) -> Any:
        """Detaches samples that are already cut, as `piece` does."""
        if not self._wanted:
            return piece
        leaves = self._samples.leaves_of(piece)
        self._leaves = {index: leaves[index].detach().requires_grad_() for index in self._wanted}
        return self._samples.filled([self._leaves.get(index, leaf) for index, leaf in enumerate(leaves)])

    def beside(self, wanted: Sequence[Tensor] | None) -> Sequence[Tensor] | None:
        """The tensors that backward adds gradients to, if it is restricted to the `wanted` parameters; else None."""
        return None if wanted is None else [*wanted, *self._leaves.values()]

    def take(self, rows: range) -> None:
        """Copies the gradients of a piece into those of the batch."""
        for index, leaf in self._leaves.items():
            whole = self._samples.leaves[index]
            if leaf.grad is None:
                continue
            into = self._whole.setdefault(index, torch.zeros_like(whole))
            if self._samples.is_cut(whole):
                into = into[rows.start : rows.stop]
            into.add_(leaf.grad.to(into.device))
        self._leaves = {}

    def whole(self) -> list[Tensor | None]:
        """The gradients of the inputs that require one, in the order of the leaves."""
        return [self._whole.get(index) for index in self._wanted]

    def backward(self) -> None:
        """Continues backward with them into the graphs that computed the inputs."""
        rows = [(self._samples.leaves[index], gradient) for index, gradient in self._whole.items()]
        if rows:
            torch.autograd.backward(*zip(*rows, strict=True))
