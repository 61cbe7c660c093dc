"""Micro-batches: forward and backward of each piece in turn, for losses that are means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from memlab._batches.batch import Batch
from memlab._batches.gradient_accumulation import GradientAccumulation
from memlab._batches.inputs import InputGradients
from memlab._batches.nested import Samples, call
from memlab._batches.observers import Keeper, keeper, observer
from memlab._batches.piece_prefetch import PiecePrefetcher
from memlab._batches.pieces import Piece, run_pieces
from memlab._batches.state import Autocast

Scale = Callable[[Tensor], Tensor]


class Weighing(Protocol):
    """A mean, and its denominator."""

    @property
    def is_sum(self) -> bool:
        """True if the loss is not divided by anything."""

    def weight(self, samples: int, targets: Any, /) -> Tensor | int:
        """D of some samples."""

    def countable(self, targets: Any, /) -> Any:
        """Targets, at least one of which counts."""

    def __call__(self, outputs: Any, targets: Any, /) -> Tensor:
        """The loss of a piece."""


class WeightedBackward:
    """The loss of a batch and its gradients, piece by piece."""

    def __init__(self, batch: Batch, targets: Samples | None, mean: Weighing) -> None:
        self._batch = batch
        self._mean = mean
        samples = batch.samples
        whole = None if targets is None else targets.piece(range(len(samples)))
        #: D of these samples.
        self.weight = mean.weight(len(samples), whole)
        self._inputs = InputGradients(samples)
        self._prefetcher = PiecePrefetcher(batch.device, [samples, targets])
        self._loss: Tensor | None = None
        self._keep: Keeper | None = None
        # The samples computed next.
        self._after: WeightedBackward | None = None

    def run(self, scale: Scale) -> Tensor:
        """Adds to the gradients and returns the loss, without a graph."""
        tell, count = observer(), len(self._batch.samples)
        self._keep = keeper()
        every = self._batch.ranks.part_of_all(self.weight, self._batch.device)
        with self._batch.layers(), GradientAccumulation(self._batch) as progress:
            loss = self.add(scale, progress, every, lambda rows: tell(rows, count))
        self._inputs.backward()
        return loss

    def add(
        self,
        scale: Scale,
        progress: GradientAccumulation,
        every: Tensor | int,
        tell: Callable[[range], None],
        after: WeightedBackward | None = None,
    ) -> Tensor:
        """Adds the gradients of these samples as a part of a batch with the denominator D = `every`. Returns their part of
        the loss. `after`: the samples that follow; ranks average with the last."""
        self._scale, self._progress, self._all, self._after = scale, progress, every, after
        batch = self._batch
        self._ranks = batch.ranks if after is None else batch.ranks.apart()
        batch.sizing.copies_ahead(self._prefetcher.sample_bytes)
        batch.sizing.keep_outputs(0)

        def done(rows: range, is_whole: bool) -> None:
            progress.piece_done()
            if is_whole:
                tell(rows)

        try:
            run_pieces(
                len(batch.samples),
                batch.sizing,
                batch.parameters,
                self._piece,
                done,
                others_wait=self._ranks.are_several,
                all_wait=self._ranks.are_in_step,
            )
        finally:
            self._prefetcher.drop()
            self._after = None
            batch.ranks.finish()
        assert self._loss is not None  # There is at least one piece.
        return self._loss

    def drop(self) -> None:
        """Forgets the prefetched piece."""
        self._prefetcher.drop()

    def _first_piece(self) -> range | None:
        """The rows of the first piece, if its size is decided; else None."""
        size = self._batch.sizing.size(len(self._batch.samples))
        return range(size) if self._batch.sizing.is_known(size) else None

    def _piece(self, piece: Piece) -> None:
        after = self._after if piece.is_last else None
        try:
            self._compute(piece, after)
        except BaseException:
            if after is not None:
                after.drop()  # The halves of this piece need the memory.
            raise

    def _compute(self, piece: Piece, after: WeightedBackward | None) -> None:
        if piece.is_last and self._ranks.are_several:
            self._progress.end_sums()  # This backward averages all accumulated gradients over the ranks.
        torch.clear_autocast_cache()
        inputs, targets = self._prefetcher.take(piece.rows)
        self._prefetcher.allocate(piece.following)
        if after is not None:
            after._prefetcher.allocate(after._first_piece())
        outputs = call(self._ranks.model(piece.is_last), self._inputs.separate(inputs))
        if self._keep is not None:
            self._keep(piece.rows, outputs)
        loss = self._mean(outputs, self._mean.countable(targets))
        if loss.dim() != 0:
            raise ValueError(f"the loss has shape {tuple(loss.shape)}: it must be a scalar")
        if not self._mean.is_sum:
            share = self._share(targets, len(piece.rows), loss)
            # The model's own loss of a piece without labels is NaN.
            loss = (loss if isinstance(share, float) else loss.where(share != 0, 0)) * share
        with Autocast.off():
            self._scale(loss).backward(inputs=self._inputs.beside(piece.wanted))
        (self._prefetcher if after is None else after._prefetcher).copy()
        self._inputs.take(piece.rows)
        value = loss.detach()
        self._loss = value if self._loss is None else self._loss + value

    def _share(self, targets: Any, samples: int, like: Tensor) -> Tensor | float:
        """The piece's part of the batch's mean."""
        return part_of(self._mean.weight(samples, targets), self._all, like)


def part_of(weight: Tensor | int, every: Tensor | int, like: Tensor) -> Tensor | float:
    """The share of a piece in a mean. In half precision counts are inexact beyond some hundreds: they use float32 there."""
    if isinstance(weight, int) and isinstance(every, int):
        return weight / every
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    part, whole = (torch.as_tensor(one).to(like.device, dtype) for one in (weight, every))
    return part / whole
