"""Replay: outputs of the whole batch in the memory of a piece, for losses that look at all samples.

All pieces go forward without a graph. The loss sees their outputs together, and gives the gradient of each. In backward each
piece goes forward once more, with the same random numbers and buffers, and backward with its part of these gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from memlab._batches.ahead import Ahead
from memlab._batches.batch import Batch
from memlab._batches.gradients import PIECES_FOR_SUMS, WideSums
from memlab._batches.inputs import InputGradients
from memlab._batches.nested import call, joined
from memlab._batches.observing import observer
from memlab._batches.out_of_memory import drop_frames, is_out_of_memory
from memlab._batches.pieces import Piece, run_pieces
from memlab._batches.ranks import WITHIN_A_BACKWARD
from memlab._batches.sizing import FixedSize
from memlab._batches.state import Autocast, Buffers, RandomState
from memlab._paging.torch_private import tree_flatten, tree_unflatten

# Models whose second forward gave the outputs of the first.
_SAME_TWICE: WeakSet[nn.Module] = WeakSet()


class Course:
    """How the first forward of a batch went, to have it go so again."""

    #: The random numbers after it, and the buffers before and after it.
    after: RandomState
    buffers: Buffers

    def __init__(self) -> None:
        self.autocast = Autocast()
        self.pieces: list[range] = []
        #: Before each piece.
        self.random: list[RandomState] = []


class Replay:
    """One batch through a model: outputs of all samples now, backward later."""

    def __init__(self, batch: Batch, course: Course | None = None) -> None:
        """`course`: that of another one's forward of the same samples, whose outputs this one's backward is for."""
        self._batch = batch
        self._samples = batch.samples
        self._model = batch.model
        self._device = batch.device
        self._sizing = batch.sizing
        self._refuse = batch.refuse
        self._parameters = batch.parameters
        self._tell = observer()
        self._inputs = [leaf for leaf in self._samples.leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
        self._ahead = Ahead(self._device, [self._samples])
        # The outputs and their gradients, if backward of the pieces follows later.
        self._received: tuple[Sequence[Any], Sequence[Tensor | None]] | None = None
        self._has_backward = torch.is_grad_enabled() and bool(self._inputs or self._parameters)
        self._is_same_twice = course is None and batch.model in _SAME_TWICE
        self._course = Course() if course is None else course

    def outputs(self, *, later: bool = False) -> Any:
        """What the model returns for the whole batch. Its backward adds to the gradients of the model's parameters; if
        that is to be `later`, `backward_of_loss` does."""
        if not self._has_backward:
            return self.forward()
        # An output has a graph if something that it was made of has one: here nothing else may have.
        anchor = torch.empty(0, requires_grad=True)
        form: list[Any] = []
        leaves = _Replayed.apply(self, form, anchor, *([] if later else self._inputs))
        return tree_unflatten(list(leaves), form[0])

    def backward_of_loss(self, loss: Tensor) -> None:
        """Backward of a loss of the `outputs`, and then of the pieces: outside of the loss's backward, where ranks can wait
        for each other."""
        self._received = ([], [])
        loss.backward()
        leaves, gradients = self._received
        self._received = None
        if leaves:
            self.backward(leaves, gradients).backward()

    def receive(self, leaves: Sequence[Any], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Called in the loss's backward, with the gradients of the outputs. Returns those of the inputs, if that is now."""
        if self._received is not None:
            self._received = (leaves, gradients)
            return []
        if self._batch.ranks.are_several:
            raise RuntimeError(WITHIN_A_BACKWARD)
        return self.backward(leaves, gradients).whole()

    def _find_size(self) -> None:
        """Tries sizes: once outputs are there, pieces cannot be other ones. Nothing is left of these tries."""
        self._sizing.copies_ahead(self._ahead.sample_bytes)
        while not self._sizing.is_known(size := self._sizing.size(len(self._samples))):
            buffers, random = Buffers(self._model), RandomState({self._device})
            failed: Exception | None = None
            try:
                with self._sizing.measured(size):
                    self._try(size)
            except Exception as error:
                if not is_out_of_memory(error) or size == 1:
                    raise
                failed = error
            finally:
                buffers.set_before()
                random.restore()
            if failed is not None:
                drop_frames(failed)
                self._sizing.failed(size)

    def _try(self, size: int) -> None:
        """Forward of so many samples, and backward if the batch will have one."""
        with torch.set_grad_enabled(self._has_backward), self._course.autocast.again():
            model = self._batch.ranks.model()
            results, _ = tree_flatten(call(model, self._samples.piece(range(size), self._device)))
            outputs = [one for one in results if isinstance(one, Tensor) and one.requires_grad]
            if outputs:
                nothing = [torch.zeros_like(one) for one in outputs]
                torch.autograd.grad(outputs, self._parameters, nothing, allow_unused=True)

    def forward(self) -> Any:
        """All pieces without a graph."""
        try:
            with self._batch.layers():
                self._find_size()
                self._course.buffers = Buffers(self._model)
                results = self._forward_pieces()
        finally:
            self._ahead.drop()
            self._batch.ranks.finish()
        self._course.after = RandomState({self._device})
        if self._refuse is None:
            self._course.buffers.keep_after()
        self._course.buffers.set_after()
        return joined(results, self._course.pieces)

    def _forward_pieces(self) -> list[Any]:
        results = []
        rows = self._rows_from(0)
        while rows is not None:
            following = self._rows_from(rows.stop)
            self._course.random.append(RandomState({self._device}))
            (inputs,) = self._ahead.take(rows)
            self._ahead.allocate(following)
            with torch.no_grad():
                results.append(call(self._batch.ranks.model(), inputs))
            self._ahead.copy()
            if self._refuse is not None and (name := self._course.buffers.rewind()) is not None:
                self._refuse(name)
            self._course.pieces.append(rows)
            rows = following
        return results

    def _rows_from(self, begin: int) -> range | None:
        """The piece that begins at a sample; None: there are no more samples."""
        left = len(self._samples) - begin
        return range(begin, begin + self._sizing.size(left)) if left else None

    def backward(
        self, leaves: Sequence[Any], gradients: Sequence[Tensor | None], sums: WideSums | None = None
    ) -> InputGradients:
        """Each piece forward and backward, with the gradients of the outputs; returns those of the inputs. `sums`: where
        those in half precision are added to; None: it has its own."""
        now = RandomState({self._device})
        inputs = InputGradients(self._samples)
        own = WideSums(self._parameters) if sums is None and len(self._course.pieces) >= PIECES_FOR_SUMS else None
        sums = own if sums is None else sums
        try:
            with self._batch.layers():
                for index, rows in enumerate(self._course.pieces):
                    self._course.buffers.set_before()
                    if sums is not None and index + 1 == len(self._course.pieces) and self._batch.ranks.are_several:
                        sums.give_back()  # What this backward averages over the ranks is all that was added up.
                        sums = None
                    self._piece_backward(index, rows, leaves, gradients, inputs)
                    if sums is not None:
                        sums.take()
                    self._tell(rows, len(self._samples))
        except BaseException:
            self._course.buffers.set_before()
            raise
        else:
            self._course.buffers.set_after()
        finally:
            self._ahead.drop()
            self._batch.ranks.finish()
            if own is not None:
                own.give_back()
            now.restore()
        _SAME_TWICE.add(self._model)
        return inputs

    def _piece_backward(
        self,
        index: int,
        rows: range,
        leaves: Sequence[Any],
        gradients: Sequence[Tensor | None],
        inputs: InputGradients,
    ) -> None:
        random = self._course.random[index]
        is_last = index + 1 == len(self._course.pieces)
        following = None if is_last else self._course.pieces[index + 1]
        after = self._course.after if is_last else self._course.random[index + 1]
        ranks = self._batch.ranks

        def work(piece: Piece) -> None:
            part = _within(rows, piece.rows)
            random.restore()
            (samples,) = self._ahead.take(part)
            self._ahead.allocate(following if piece.following is None else _within(rows, piece.following))
            with torch.enable_grad(), self._course.autocast.again():
                results, _ = tree_flatten(call(ranks.model(is_last and piece.is_last), inputs.separate(samples)))
            if not self._is_same_twice:
                _check_same(leaves, results, part)
            pairs = [
                (result, gradient[part.start : part.stop])
                for result, gradient in zip(results, gradients, strict=True)
                if isinstance(result, Tensor) and result.requires_grad and gradient is not None
            ]
            if pairs:
                with Autocast.off():
                    torch.autograd.backward(*zip(*pairs, strict=True), inputs=inputs.beside(piece.wanted))
            self._ahead.copy()
            inputs.take(part)

        try:
            # A piece whose forward draws random numbers cannot be halved: they would be others.
            # Nor can one in which other ranks wait.
            if random == after and not (is_last and ranks.are_several) and not ranks.are_in_step:
                run_pieces(len(rows), FixedSize(len(rows)), self._parameters, work, lambda part, is_whole: None)
            else:
                work(Piece(range(len(rows)), is_last=True))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._sizing.failed(len(rows))
            raise torch.cuda.OutOfMemoryError(
                f"{error}\nmemlab: backward of {len(rows)} samples did not fit, after the loss was computed from their "
                f"outputs. The next batch is computed in pieces of {max(len(rows) // 2, 1)}. Drop the gradients of this one "
                "(zero_grad)"
            ) from error


class _Replayed(torch.autograd.Function):
    """A model's outputs, whose backward is `Replay.receive`."""

    @staticmethod
    def forward(ctx: Any, replay: Replay, form: list[Any], anchor: Tensor, *inputs: Tensor) -> tuple[Any, ...]:
        leaves, shape = tree_flatten(replay.forward())
        form.append(shape)
        ctx.replay = replay
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *[leaf for leaf in leaves if isinstance(leaf, Tensor) and not leaf.dtype.is_floating_point]
        )
        ctx.leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return tuple(leaves)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, None, None, *ctx.replay.receive(ctx.leaves, gradients))


def _within(rows: range, part: range) -> range:
    """A part of a piece, as samples of the batch."""
    return range(rows.start + part.start, rows.start + part.stop)


def _check_same(first: Sequence[Any], again: Sequence[Any], rows: range) -> None:
    """Raises RuntimeError if a piece's second forward gave something else than the first."""
    for whole, result in zip(first, again, strict=True):
        if not isinstance(whole, Tensor) or not whole.dtype.is_floating_point:
            continue
        one, other = whole[rows.start : rows.stop].double(), result.detach().double()
        distance, bound = (one - other).norm(), 0.02 * one.norm() + 1e-12
        # Into memory that is zero: on a simulated card, whose kernels compute nothing, it stays so.
        is_other = torch.zeros((), dtype=torch.bool, device=one.device)
        if bool(torch.logical_and(~(distance <= bound), bound.isfinite(), out=is_other)):
            raise RuntimeError(
                "the model gives other outputs when the same samples go through it again, with the same random numbers and "
                "buffers: it keeps something between forwards (a cache, a counter, its own random numbers), or an iterable "
                "of pieces gives others the second time. Gradients would be wrong, so none were added"
            )
