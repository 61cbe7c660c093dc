"""Micro-batches: forward and backward of one piece after the other, for losses that are means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from memlab._batches.criteria import Mean
from memlab._batches.gradients import PIECES_FOR_SUMS, WideSums
from memlab._batches.inputs import InputGradients
from memlab._batches.nested import Samples, call
from memlab._batches.pieces import run_pieces
from memlab._batches.sizing import Sizing
from memlab._batches.state import Autocast, Buffers

Scale = Callable[[Tensor], Tensor]


class WeightedBackward:
    """The loss of a batch and its gradients, piece by piece."""

    def __init__(
        self, model: nn.Module, samples: Samples, targets: Samples | None, mean: Mean, device: torch.device
    ) -> None:
        self._model = model
        self._samples = samples
        self._targets = targets
        self._mean = mean
        self._device = device
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        whole = None if targets is None else targets.piece(range(len(samples)))
        self._all = mean.weight(len(samples), whole)
        self._inputs = InputGradients(samples)
        self._loss: Tensor | None = None

    def run(self, sizing: Sizing, scale: Scale, refuse: Callable[[str], None] | None) -> Tensor:
        """Adds to the gradients and returns the loss, without a graph. `refuse`: what to call with the name of a buffer that
        depends on the samples; None: such buffers are as after the last piece."""
        self._scale = scale
        buffers = Buffers(self._model)
        # Made in the piece from which sums are worth it: most batches have few.
        sums: WideSums | None = None
        finished = 0

        def done() -> None:
            nonlocal finished, sums
            finished += 1
            if refuse is not None and (name := buffers.rewind()) is not None:
                refuse(name)
            if sums is not None:
                sums.take()
            elif finished + 1 == PIECES_FOR_SUMS:
                sums = WideSums(self._parameters)

        try:
            run_pieces(len(self._samples), sizing, self._parameters, self._piece, done)
        finally:
            if sums is not None:
                sums.give_back()
            if refuse is not None:
                buffers.set_after()
        self._inputs.backward()
        assert self._loss is not None  # There is at least one piece.
        return self._loss

    def _piece(self, rows: range, wanted: Sequence[Tensor] | None) -> None:
        torch.clear_autocast_cache()
        outputs = call(self._model, self._inputs.piece(rows, self._device))
        targets: Any = None if self._targets is None else self._targets.piece(rows, self._device)
        loss = self._mean(outputs, self._mean.countable(targets))
        if loss.dim() != 0:
            raise ValueError(f"the loss has shape {tuple(loss.shape)}: it must be one number")
        if not self._mean.is_sum:
            weight = self._mean.weight(len(rows), targets)
            loss = loss * (weight / self._all if isinstance(weight, int) else weight.to(loss) / self._whole_weight(loss))
        with Autocast.off():
            self._scale(loss).backward(inputs=self._inputs.beside(wanted))
        self._inputs.take(rows)
        value = loss.detach()
        self._loss = value if self._loss is None else self._loss + value

    def _whole_weight(self, like: Tensor) -> Tensor:
        assert isinstance(self._all, Tensor)
        return self._all.to(like.device, torch.float32 if like.dtype != torch.float64 else like.dtype)
