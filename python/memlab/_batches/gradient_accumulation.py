"""Gradients that the pieces of a batch have added up so far, and buffers between pieces."""

from __future__ import annotations

from types import TracebackType

from torch import Tensor

from memlab._batches.batch import Batch
from memlab._batches.gradients import PIECES_FOR_SUMS, WideSums
from memlab._batches.state import Buffers


class GradientAccumulation:
    """A block in which pieces are computed. Afterwards buffers are as one forward leaves them, or as before if it raises."""

    def __init__(self, batch: Batch) -> None:
        self._parameters = batch.parameters
        self._refuse = batch.refuse
        self._buffers = Buffers(batch.model)
        self._finished = 0
        # Made in the piece from which sums are worth it: most batches have few.
        self._sums: WideSums | None = None
        # The gradients that were there before, while they are set aside.
        self._before: list[Tensor | None] | None = None

    def __enter__(self) -> GradientAccumulation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.end_sums()
            if self._refuse is not None:
                self._buffers.set_after()
            return
        self._buffers.set_before()
        if self._before is None:
            self.end_sums()
        else:  # What was added up is no gradient yet.
            for parameter, old in zip(self._parameters, self._before, strict=True):
                parameter.grad = old

    def piece_done(self) -> None:
        """After each piece."""
        self._finished += 1
        if self._refuse is not None and (name := self._buffers.rewind()) is not None:
            self._refuse(name)
        if self._sums is not None:
            self._sums.take()
        elif self._finished + 1 == PIECES_FOR_SUMS:
            self._sums = WideSums(self._parameters)

    def set_aside(self) -> None:
        """Gradients that are there are not those of this batch: `rescale` leaves them as they are."""
        self._before = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None

    def rescale(self, factor: Tensor | float) -> None:
        """Multiplies what was added up since `set_aside`, and adds it to the gradients that were there before."""
        assert self._before is not None, "gradients were set aside"
        before, self._before = self._before, None
        if self._sums is not None:
            self._sums.scale(factor)
        for parameter, old in zip(self._parameters, before, strict=True):
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
            if old is not None:
                parameter.grad = old if parameter.grad is None else old.add_(parameter.grad)
        if self._sums is not None:
            self._sums.take()

    def end_sums(self) -> None:
        """The parameters have the gradients."""
        if self._sums is not None:
            self._sums.give_back()
            self._sums = None
