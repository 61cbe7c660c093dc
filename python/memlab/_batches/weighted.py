"""Micro-batches: forward and backward of one piece after the other, for losses that are means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from memlab._batches.ahead import Ahead
from memlab._batches.batch import Batch
from memlab._batches.criteria import Mean
from memlab._batches.gradients import PIECES_FOR_SUMS, WideSums
from memlab._batches.inputs import InputGradients
from memlab._batches.nested import Samples, call
from memlab._batches.observing import observer
from memlab._batches.own_loss import OwnLoss
from memlab._batches.pieces import Piece, run_pieces
from memlab._batches.state import Autocast, Buffers

Scale = Callable[[Tensor], Tensor]


class WeightedBackward:
    """The loss of a batch and its gradients, piece by piece."""

    def __init__(self, batch: Batch, targets: Samples | None, mean: Mean | OwnLoss) -> None:
        self._batch = batch
        self._mean = mean
        samples = batch.samples
        whole = None if targets is None else targets.piece(range(len(samples)))
        self._all = batch.ranks.part_of_all(mean.weight(len(samples), whole), batch.device)
        self._inputs = InputGradients(samples)
        self._ahead = Ahead(batch.device, [samples, targets])
        self._loss: Tensor | None = None
        # Made in the piece from which sums are worth it: most batches have few.
        self._sums: WideSums | None = None

    def run(self, scale: Scale) -> Tensor:
        """Adds to the gradients and returns the loss, without a graph."""
        self._scale = scale
        refuse, parameters = self._batch.refuse, self._batch.parameters
        buffers = Buffers(self._batch.model)
        finished, tell = 0, observer()

        def done(rows: range, is_whole: bool) -> None:
            nonlocal finished
            finished += 1
            if refuse is not None and (name := buffers.rewind()) is not None:
                refuse(name)
            if self._sums is not None:
                self._sums.take()
            elif finished + 1 == PIECES_FOR_SUMS:
                self._sums = WideSums(parameters)
            if is_whole:
                tell(rows, count)

        count, sizing, several = len(self._batch.samples), self._batch.sizing, self._batch.ranks.are_several
        sizing.copies_ahead(self._ahead.sample_bytes)
        try:
            with self._batch.layers():
                run_pieces(count, sizing, parameters, self._piece, done, others_wait=several)
        except BaseException:
            buffers.set_before()
            raise
        finally:
            self._ahead.drop()
            self._end_sums()
        if refuse is not None:
            buffers.set_after()
        self._inputs.backward()
        assert self._loss is not None  # There is at least one piece.
        return self._loss

    def _end_sums(self) -> None:
        if self._sums is not None:
            self._sums.give_back()
            self._sums = None

    def _piece(self, piece: Piece) -> None:
        if piece.is_last and self._batch.ranks.are_several:
            self._end_sums()  # What this backward averages over the ranks is all that was added up.
        torch.clear_autocast_cache()
        inputs, targets = self._ahead.take(piece.rows)
        self._ahead.allocate(piece.following)
        outputs = call(self._batch.ranks.model(piece.is_last), self._inputs.separate(inputs))
        loss = self._mean(outputs, self._mean.countable(targets))
        if loss.dim() != 0:
            raise ValueError(f"the loss has shape {tuple(loss.shape)}: it must be one number")
        if not self._mean.is_sum:
            share = self._share(targets, len(piece.rows), loss)
            # A model's own loss of no labels is NaN.
            loss = (loss if isinstance(share, float) else loss.where(share != 0, 0)) * share
        with Autocast.off():
            self._scale(loss).backward(inputs=self._inputs.beside(piece.wanted))
        self._ahead.copy()
        self._inputs.take(piece.rows)
        value = loss.detach()
        self._loss = value if self._loss is None else self._loss + value

    def _share(self, targets: Any, samples: int, like: Tensor) -> Tensor | float:
        """The piece's part of the batch's mean. Half precision cannot count beyond some hundreds: there it is in float32."""
        weight = self._mean.weight(samples, targets)
        if isinstance(weight, int) and isinstance(self._all, int):
            return weight / self._all
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        part, whole = (torch.as_tensor(one).to(like.device, dtype) for one in (weight, self._all))
        return part / whole
