"""Lockstep: the gradients of a batch through BatchNorm in training, in micro-batches that run at the same time.

BatchNorm needs the statistics of the whole batch before any sample goes on. So each micro-batch has a thread, of which one
runs at a time, and they meet in each BatchNorm: once in forward, and once in backward. The loss is computed once, from
the outputs of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from memlab._batches.batch import Batch
from memlab._batches.batch_statistics import meeting_at_batchnorm
from memlab._batches.gradients import PIECES_FOR_SUMS, WideSums
from memlab._batches.inputs import InputGradients
from memlab._batches.interleaved import InterleavedBuffers, RandomNumbers
from memlab._batches.nested import call, joined
from memlab._batches.observing import observer
from memlab._batches.out_of_memory import drop_frames, is_out_of_memory
from memlab._batches.sizing import FixedSize, room_on
from memlab._batches.spilling import Spilling, StrandMemory
from memlab._batches.state import Autocast
from memlab._batches.strands import Crew, Meeting, Strand
from memlab._batches.thread_state import ThreadState
from memlab._paging.torch_private import tree_flatten, tree_unflatten

# Micro-batches of a batch, if nobody has asked for a size: each meets the others twice in each layer.
_MOST = 32
# Half the size of micro-batches that did not fit, by model.
_LIMITS: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()

_OUTPUTS = "the end of its forward"

Scale = Callable[[Tensor], Tensor]


class Lockstep:
    """One batch through a model, forward and backward."""

    def __init__(self, batch: Batch, *, spill: bool | None = None) -> None:
        """`spill`: micro-batches that wait are in host memory; None: if they are on a GPU."""
        self._batch = batch
        self._spills = batch.device.type == "cuda" if spill is None else spill
        _refuse(batch)

    def run(self, loss_of_outputs: Callable[[Any], Tensor], scale: Scale = lambda loss: loss) -> Tensor:
        """Adds to the gradients, and returns the loss without a graph.

        `loss_of_outputs` is given what the model returns for the whole batch, and `scale` the loss before backward.

        The size of micro-batches is the same throughout a batch. If none is asked for there are 32, or fewer where larger
        ones are known to fit. A forward that runs out of memory begins again, with micro-batches of half the size.

        Raises:
            RuntimeError: micro-batches run other layers than others; a buffer depends on the samples; gradients are off.
            ValueError: the loss is not one number, or an output has no row for each sample.
            torch.OutOfMemoryError: a single sample does not fit, or a backward does not, which has added to gradients.
        """
        if not torch.is_grad_enabled():
            raise RuntimeError("gradients are off here (no_grad or inference_mode), and the batch needs them")
        count, sizing = len(self._batch.samples), self._batch.sizing
        while True:
            pieces = _pieces(count, self._size())
            attempt = _Attempt(self._batch, pieces, spills=self._spills and len(pieces) > 1)
            try:
                return attempt.run(loss_of_outputs, scale)
            except Exception as error:
                if not is_out_of_memory(error) or len(pieces[0]) == 1:
                    raise
                sizing.failed(len(pieces[0]))
                _LIMITS[self._batch.model] = len(pieces[0]) // 2
                if attempt.has_added:
                    raise torch.cuda.OutOfMemoryError(
                        f"{error}\nmemlab: a backward did not fit. The next batch is computed in micro-batches of half the "
                        "size. Drop the gradients of this one (zero_grad)"
                    ) from error
                drop_frames(error)

    def _size(self) -> int:
        """Samples in a micro-batch."""
        count, sizing = len(self._batch.samples), self._batch.sizing
        size = sizing.size(count)
        if isinstance(sizing, FixedSize):
            return size
        return max(size, min(-(-count // _MOST), _LIMITS.get(self._batch.model, count)))


def _refuse(batch: Batch) -> None:
    if batch.ranks.are_several:
        raise RuntimeError("BatchNorm in lockstep is for one process: give the module within (model.module)")
    for name, module in batch.model.named_modules():
        if type(module).__name__ == "OptimizedModule" or isinstance(module, torch.jit.ScriptModule):
            raise RuntimeError(
                f"{name or 'the model'} is compiled: BatchNorm within it cannot wait for other micro-batches. Give the "
                "model as it was before"
            )
        if isinstance(module, nn.DataParallel):
            raise RuntimeError(f"{name or 'the model'} is a DataParallel, which has threads of its own: give its module")
        if isinstance(module, nn.SyncBatchNorm) and module.training and _processes(module) > 1:
            raise RuntimeError(
                f"{name or 'the model'} is a SyncBatchNorm of several processes: BatchNorm in lockstep is for one"
            )


def _processes(norm: nn.SyncBatchNorm) -> int:
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return 1
    return torch.distributed.get_world_size(norm.process_group)


def _pieces(count: int, size: int) -> list[range]:
    return [range(begin, min(begin + size, count)) for begin in range(0, count, size)]


def _room(batch: Batch) -> int:
    """Bytes of micro-batches that wait which may stay on the device: the one that runs needs the other half."""
    return room_on(batch.device, batch.memory) // 2 if batch.device.type == "cuda" else 0


class _Attempt:
    """The batch in micro-batches of one size."""

    def __init__(self, batch: Batch, pieces: Sequence[range], *, spills: bool) -> None:
        self._batch = batch
        self._pieces = pieces
        self._inputs = InputGradients(batch.samples)
        self._random = RandomNumbers(
            {one.device for one in [*batch.model.parameters(), *batch.model.buffers()]}, len(pieces)
        )
        self._buffers = InterleavedBuffers(batch.model, len(pieces))
        self._state = ThreadState()
        self._spilling = Spilling(batch.device, _room(batch)) if spills else None
        self._memories = [StrandMemory(self._spilling) for _ in pieces] if self._spilling is not None else []
        # What the outputs of all micro-batches are, and their gradients.
        self._leaves: list[Any] = []
        #: Whether gradients may have been added to.
        self.has_added = False

    def run(self, loss_of_outputs: Callable[[Any], Tensor], scale: Scale) -> Tensor:
        works = [self._work(index, rows) for index, rows in enumerate(self._pieces)]
        names = [f"samples {rows.start} to {rows.stop - 1}" for rows in self._pieces]
        is_done = False
        try:
            with meeting_at_batchnorm(self._batch.model), Crew(works, names, self._resume, self._suspend) as crew:
                loss = self._loss(crew.run(until=_OUTPUTS), loss_of_outputs)
                with Autocast.off():
                    scaled = scale(loss)
                    self.has_added = True
                    scaled.backward()
                with self._sums():
                    crew.run()
            is_done = True
        finally:
            if self._spilling is not None:
                self._spilling.bring_all_back()
            if is_done:
                self._buffers.set_after(len(self._pieces) - 1 if self._batch.refuse is None else 0)
                self._random.resume(0)
            else:
                self._buffers.set_before()
                self._random.set_before()
        self._inputs.backward()
        for rows in self._pieces:
            observer()(rows, len(self._batch.samples))
        return loss.detach()

    def _work(self, index: int, rows: range) -> Callable[[], None]:
        """What the strand of a micro-batch does."""

        def work() -> None:
            strand = Strand.current()
            assert strand is not None, "it runs in a strand"
            self._state.enter()
            # The leaves are of the micro-batch, their gradients go into those of all.
            inputs = copy(self._inputs)
            with ExitStack() as forward:
                forward.enter_context(self._state.forward())
                if self._memories:
                    forward.enter_context(self._memories[index].forward(offloads=self._state.hooks is None))
                outputs = call(self._batch.model, inputs.piece(rows, self._batch.device))
            results, _ = tree_flatten(outputs)
            strand.meet(Meeting(_OUTPUTS, _OUTPUTS, outputs, lambda _: None))
            del outputs
            pairs = [
                (result, whole.grad[rows.start : rows.stop])
                for result, whole in zip(results, self._leaves, strict=True)
                if isinstance(result, Tensor) and result.requires_grad and whole.grad is not None
            ]
            del results
            with ExitStack() as backward:
                if self._memories:
                    backward.enter_context(self._memories[index])
                if pairs:
                    torch.autograd.backward(*zip(*pairs, strict=True))
            inputs.take(rows)

        return work

    def _resume(self, index: int) -> None:
        """Before a strand runs."""
        self._random.resume(index)
        self._buffers.resume(index)
        if self._memories:
            self._memories[index].resume()

    def _suspend(self, index: int, meeting: Meeting | None) -> None:
        """A strand waits, or has finished."""
        if self._memories and meeting is not None:
            self._memories[index].suspend([meeting.contribution, self._held_by_all()])
        self._buffers.suspend(index)
        self._random.suspend(index)

    def _held_by_all(self) -> list[Tensor]:
        """Tensors that strands make, and others write to."""
        return [*self._batch.model.buffers(), *[one.grad for one in self._batch.parameters if one.grad is not None]]

    def _loss(self, outputs: list[Any], loss_of_outputs: Callable[[Any], Tensor]) -> Tensor:
        """The loss of all outputs, with which their leaves get gradients."""
        if self._batch.refuse is not None and (name := self._buffers.different()) is not None:
            self._batch.refuse(name)
        # (With a graph, so that it is known which of them have one.)
        whole, form = tree_flatten(joined(outputs, self._pieces))
        self._leaves = [
            leaf.detach().requires_grad_() if isinstance(leaf, Tensor) and leaf.requires_grad else leaf for leaf in whole
        ]
        self._random.resume(0)
        loss = loss_of_outputs(tree_unflatten(self._leaves, form))
        self._random.suspend(0)
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            described = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise ValueError(f"the loss is {described}: it must be a tensor that is one number")
        return loss

    @contextmanager
    def _sums(self) -> Iterator[None]:
        """Has gradients in half precision summed in float32, if they are many."""
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
