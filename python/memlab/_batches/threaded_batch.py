"""A batch in threads: the forward of all micro-batches together, and then their backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from memlab._batches.batch import Batch
from memlab._batches.batch_statistics import meeting_at_batchnorm
from memlab._batches.gradients import PIECES_FOR_SUMS, WideSums
from memlab._batches.inputs import InputGradients
from memlab._batches.interleaved import InterleavedBuffers, RandomNumbers
from memlab._batches.lockstep_history import LockstepHistory
from memlab._batches.microbatch_threads import Meeting, MicrobatchThread, MicrobatchThreads
from memlab._batches.nested import call, joined
from memlab._batches.observers import observer
from memlab._batches.spilling import MicrobatchMemory, Spilling
from memlab._batches.thread_state import ThreadState
from memlab._paging.torch_private import tree_flatten

_OUTPUTS = "the end of its forward"
# Divisor of the free memory: this part is for waiting threads.
_WAITING = 4


class ThreadedBatch:
    """A batch in micro-batches of one size. Leaving the context before `backward` is done restores buffers and random
    numbers from before the batch."""

    def __init__(
        self, batch: Batch, pieces: Sequence[range], lockstep_history: LockstepHistory, *, spills: bool, has_backward: bool
    ) -> None:
        self._batch = batch
        self._pieces = pieces
        self._lockstep_history = lockstep_history
        self._inputs = InputGradients(batch.samples)
        self._random = RandomNumbers(
            {one.device for one in [*batch.model.parameters(), *batch.model.buffers()]}, len(pieces)
        )
        self._buffers = InterleavedBuffers(batch.model, len(pieces))
        self._state, self._has_backward = ThreadState(), has_backward
        self._tell = observer()
        self._spilling = self._memories = None
        if spills and len(pieces) > 1 and not lockstep_history.fits:
            room = lockstep_history.begin(batch.memory)
            self._spilling = Spilling(batch.device, room // _WAITING, lockstep_history.pending_nbytes)
            self._memories = [MicrobatchMemory(self._spilling, history) for history in lockstep_history.histories]
        works = [self._work(index, rows) for index, rows in enumerate(pieces)]
        names = [f"samples {rows.start} to {rows.stop - 1}" for rows in pieces]
        self._threads = MicrobatchThreads(works, names, self._resume, self._suspend)
        # Gradients of the outputs of all micro-batches; None: the output has none.
        self._gradients: Sequence[Tensor | None] = ()
        # The parameters that receive gradients; None: all.
        self._wanted: Sequence[Tensor] | None = None
        self._is_done = False
        #: True once gradients may have been changed.
        self.has_added = False

    def __enter__(self) -> ThreadedBatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end(undo=not self._is_done)

    def end(self, *, undo: bool) -> None:
        """Ends the threads that still wait. With `undo`, restores buffers and random numbers from before the batch."""
        try:
            self._threads.end()
            if self._spilling is not None:
                self._spilling.bring_all_back()
        finally:
            if undo:
                self._buffers.set_before()
                self._random.set_before()

    def forward(self) -> Any:
        """The model's outputs for all samples. The graphs of outputs that depend on parameters must not be used."""
        with meeting_at_batchnorm(self._batch.model):
            outputs = self._threads.run(until=_OUTPUTS)
        if self._batch.refuse is not None and (name := self._buffers.different()) is not None:
            self._batch.refuse(name)
        self._after()
        return joined(outputs, self._pieces)

    def backward(self, gradients: Sequence[Tensor | None], wanted: Sequence[Tensor] | None = None) -> InputGradients:
        """Adds to the gradients of parameters (only of `wanted`, if given). Returns the gradients of the inputs.
        `gradients`: those of the outputs' leaves."""
        self._gradients, self._wanted = gradients, wanted
        self._random.suspend(0)  # The loss has drawn the numbers that follow the first thread's.
        self.has_added = True
        with ExitStack() as stack:
            stack.enter_context(meeting_at_batchnorm(self._batch.model))
            stack.enter_context(self._sums())
            self._threads.run()
        self._is_done, self._gradients = True, ()
        if self._spilling is not None:
            self._lockstep_history.ended(self._spilling.peak_nbytes)
        self._after()
        for rows in self._pieces:
            self._tell(rows, len(self._batch.samples))
        return self._inputs

    def _after(self) -> None:
        """Sets buffers and random numbers to the values that the whole batch would have left."""
        self._buffers.set_after(len(self._pieces) - 1 if self._batch.refuse is None else 0)
        self._random.resume(0)

    def _work(self, index: int, rows: range) -> Callable[[], None]:
        """The function that runs in the thread of a micro-batch."""

        def work() -> None:
            thread = MicrobatchThread.current()
            assert thread is not None, "it runs in a micro-batch's thread"
            self._state.enter()
            memory = None if self._memories is None else self._memories[index]
            # Leaves belong to the micro-batch; their gradients go into those of the batch.
            inputs = copy(self._inputs)
            with ExitStack() as forward:
                forward.enter_context(self._state.forward())
                forward.enter_context(torch.set_grad_enabled(self._has_backward))
                if memory is not None:
                    forward.enter_context(memory.forward(offloads=self._state.hooks is None))
                outputs = call(self._batch.ranks.model(), inputs.piece(rows, self._batch.device))
            results, _ = tree_flatten(outputs)
            thread.meet(Meeting(_OUTPUTS, _OUTPUTS, outputs, lambda _: None))
            del outputs
            pairs = [
                (result, gradient[rows.start : rows.stop])
                for result, gradient in zip(results, self._gradients, strict=True)
                if isinstance(result, Tensor) and result.requires_grad and gradient is not None
            ]
            del results
            with ExitStack() as backward:
                if memory is not None:
                    backward.enter_context(memory)
                if pairs:
                    torch.autograd.backward(*zip(*pairs, strict=True), inputs=inputs.beside(self._wanted))
            inputs.take(rows)

        return work

    def _resume(self, index: int) -> None:
        """Called before a thread runs."""
        self._random.resume(index)
        self._buffers.resume(index)
        if self._memories is not None:
            self._memories[index].resume()
            self._memories[(index + 1) % len(self._memories)].expect()

    def _suspend(self, index: int, meeting: Meeting | None) -> None:
        """Called when a thread waits or has finished."""
        if self._memories is not None and meeting is not None:
            # After its forward the caller continues, and may have kept tensors made by layers.
            shared = [meeting.contribution, self._held_by_all()]
            self._memories[index].suspend(shared, spills=meeting.place != _OUTPUTS)
        self._buffers.suspend(index)
        self._random.suspend(index)

    def _held_by_all(self) -> list[Tensor]:
        """Tensors that one thread makes and others write to."""
        return [*self._batch.model.buffers(), *[one.grad for one in self._batch.parameters if one.grad is not None]]

    @contextmanager
    def _sums(self) -> Iterator[None]:
        """Sums gradients of half precision in float32, if the batch has enough pieces."""
        if len(self._pieces) < PIECES_FOR_SUMS:
            yield
            return
        sums = WideSums(self._batch.parameters)
        hooks = sums.take_each()
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            sums.give_back()
