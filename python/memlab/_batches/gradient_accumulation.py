"""Gradients accumulated over the pieces of a batch, and the state of buffers between pieces."""

from __future__ import annotations

from types import TracebackType

from torch import Tensor

from memlab._batches.batch import Batch
from memlab._batches.gradients import PIECES_FOR_SUMS, WideSums
from memlab._batches.state import Buffers


class GradientAccumulation:
    """A block that computes pieces. Buffers end as after one forward, or as before the block if it raises."""

    def __init__(self, batch: Batch) -> None:
        self._parameters = batch.parameters
        self._refuse = batch.refuse
        self._buffers = Buffers(batch.model)
        self._finished = 0
        # Created once a batch has enough pieces to need it: most batches have few.
        self._sums: WideSums | None = None
        # The earlier gradients, while they are set aside.
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
        else:  # The accumulated values are not final gradients yet.
            for parameter, old in zip(self._parameters, self._before, strict=True):
                parameter.grad = old

    def piece_done(self) -> None:
        """Called after each piece."""
        self._finished += 1
        if self._refuse is not None and (name := self._buffers.rewind()) is not None:
            self._refuse(name)
        if self._sums is not None:
            self._sums.take()
        elif self._finished + 1 == PIECES_FOR_SUMS:
            self._sums = WideSums(self._parameters)

    def set_aside(self) -> None:
        """Sets existing gradients aside, since they belong to other batches: `rescale` does not scale them."""
        self._before = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None

    def rescale(self, factor: Tensor | float) -> None:
        """Multiplies the gradients accumulated since `set_aside`, and adds them to the gradients from before."""
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
        """Moves the sums back into the parameters' gradients."""
        if self._sums is not None:
            self._sums.give_back()
            self._sums = None
