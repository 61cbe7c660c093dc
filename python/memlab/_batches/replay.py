"""Replay: outputs of the whole batch in the memory of one piece, for losses that compare samples.

All pieces go forward without a graph. The loss sees their outputs together, and its backward gives the gradient of each.
Then each piece goes forward once more, with the same random numbers and buffers, and backward with its part of these
gradients.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from memlab._batches.batch import Batch
from memlab._batches.first_order import first_order
from memlab._batches.gradients import PIECES_FOR_SUMS, Marks, WideSums
from memlab._batches.inputs import InputGradients
from memlab._batches.mixing import look_for_mixing
from memlab._batches.nested import Joining, call
from memlab._batches.observers import observer
from memlab._batches.out_of_memory import is_out_of_memory, make_room
from memlab._batches.parameter_hooks import held
from memlab._batches.piece_prefetch import PiecePrefetcher
from memlab._batches.pieces import Piece, Work, run_pieces
from memlab._batches.ranks import WITHIN_A_BACKWARD
from memlab._batches.repeatability import FirstOutputs
from memlab._batches.requested_gradients import RequestedGradients
from memlab._batches.sizing import FixedSize, room_on
from memlab._batches.state import Autocast, Buffers, RandomState
from memlab._paging.sizes import readable
from memlab._paging.torch_private import tree_flatten, tree_unflatten
from memlab.activations import offload_activations

# Models whose second forward gave the same outputs as the first.
_SAME_TWICE: WeakSet[nn.Module] = WeakSet()
# Share of the free memory for the activations of a piece that did not fit: its operations need memory, too.
_SHARE_OF_ACTIVATIONS = 0.1
# Models whose callers were warned of a loss that takes more than `memory`.
_WARNED: WeakSet[nn.Module] = WeakSet()
# Compares outputs of the second forward with those of the first.
Check = Callable[[Sequence[Any], range], None]


class ForwardRecord:
    """The conditions of a batch's first forward, to repeat it."""

    #: The random state after it, and the buffers before and after it.
    after: RandomState
    buffers: Buffers

    def __init__(self) -> None:
        self.autocast = Autocast()
        self.pieces: list[range] = []
        #: The random state before each piece.
        self.random: list[RandomState] = []


class Replay:
    """One batch through a model: outputs of all samples now, backward later."""

    def __init__(self, batch: Batch, record: ForwardRecord | None = None) -> None:
        """`record`: of another replay's forward of the same samples, if this one runs only the backward."""
        self._batch = batch
        self._samples = batch.samples
        self._model = batch.model
        self._device = batch.device
        self._sizing = batch.sizing
        self._refuse = batch.refuse
        self._parameters = batch.parameters
        self._tell = observer()
        self._inputs = [leaf for leaf in self._samples.leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
        self._prefetcher = PiecePrefetcher(self._device, [self._samples])
        # Gradients of the outputs, if backward of the pieces follows later; empty: not received yet.
        self._received: Sequence[Tensor | None] | None = None
        # For comparison with the second forward; None: the model is known to repeat its outputs.
        self._first: FirstOutputs | None = None
        self._has_backward = torch.is_grad_enabled() and bool(self._inputs or self._parameters)
        self._record = ForwardRecord() if record is None else record

    def outputs(self, *, later: bool = False) -> Any:
        """The model's outputs for the whole batch. Their backward adds to the gradients of the model's parameters. With
        `later`, `backward_of_loss` does that instead."""
        if not self._has_backward:
            return self.forward()
        # An output has a graph if one of its inputs has one: here the anchor guarantees that.
        anchor = torch.empty(0, requires_grad=True)
        form: list[Any] = []
        leaves = _ReplayedOutputs.apply(self, form, anchor, *([] if later else [*self._inputs, *self.within_graph]))
        return tree_unflatten(list(leaves), form[0])

    def backward_of_loss(self, loss: Tensor) -> None:
        """Runs the backward of a loss of the `outputs`, then that of the pieces: outside the loss's backward, so that ranks
        can wait for each other."""
        self._received = ()
        loss.backward()
        gradients, self._received = self._received, None
        if gradients:
            self.backward(gradients, self._check).backward()

    def note(self, leaves: Sequence[Any]) -> None:
        """Keeps the parts of the outputs needed for the check, before the caller gets them."""
        if self._model not in _SAME_TWICE:
            self._first = FirstOutputs(leaves, self._record.pieces[0])

    @property
    def _check(self) -> Check | None:
        return None if self._first is None else self._first.check

    @property
    def within_graph(self) -> list[Tensor]:
        """The parameters as inputs of the outputs' graph, so that a backward shows which of them it is for. (Empty for a
        model that is spread over ranks, which act when autograd reaches a parameter.)"""
        return [] if self._batch.ranks.are_several else self._parameters

    def receive(self, ctx: Any, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Called in the loss's backward, with the gradients of the outputs. Returns the gradients of the inputs and those
        requested for parameters; nothing if the pieces follow later."""
        if self._received is not None:
            self._received = gradients
            return []
        if self._batch.ranks.are_several:
            raise RuntimeError(WITHIN_A_BACKWARD)
        requested = RequestedGradients(ctx, self.within_graph)
        with requested.apart():
            inputs = self.backward(gradients, self._check, wanted=requested.wanted)
        return [*inputs.whole(), *requested.returned()]

    def _find_size(self) -> None:
        """Tries sizes, since pieces cannot change once outputs exist. Restores the model's state after each try."""
        self._sizing.copies_ahead(self._prefetcher.sample_bytes)
        self._sizing.keep_outputs(len(self._samples))
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
                make_room(failed)
                self._sizing.failed(size)

    def _try(self, size: int) -> None:
        """Runs the forward of some samples, and their backward if the batch will have one."""
        with torch.set_grad_enabled(self._has_backward), self._record.autocast.again():
            model = self._batch.ranks.model()
            results, _ = tree_flatten(call(model, self._samples.piece(range(size), self._device)))
            outputs = [one for one in results if isinstance(one, Tensor) and one.requires_grad]
            values = sum(one.nbytes for one in results if isinstance(one, Tensor))
            self._sizing.note_outputs((values + sum(one.nbytes for one in outputs)) // size)
            if outputs:
                nothing = [torch.zeros_like(one) for one in outputs]
                # Gradients are not kept: pieces add each to the sum as soon as it is computed.
                hooks = [one.register_hook(_shape_of) for one in self._parameters]
                try:
                    torch.autograd.grad(outputs, self._parameters, nothing, allow_unused=True)
                finally:
                    for hook in hooks:
                        hook.remove()

    def forward(self) -> Any:
        """Runs all pieces without a graph."""
        try:
            with self._batch.layers():
                with held(self._parameters):
                    self._find_size()
                size = self._sizing.size(len(self._samples))
                if size < len(self._samples):
                    look_for_mixing(self._batch, joins=True, size=size)
                self._record.buffers = Buffers(self._model)
                results = self._forward_pieces()
        finally:
            self._prefetcher.drop()
            self._batch.ranks.finish()
        self._record.after = RandomState({self._device})
        if self._refuse is None:
            self._record.buffers.keep_after()
        self._record.buffers.set_after()
        return results.whole()

    def _forward_pieces(self) -> Joining:
        results = Joining(len(self._samples))
        # Decided before outputs exist: their memory is reserved.
        pieces = self._decided()
        for rows, following in zip(pieces, [*pieces[1:], None], strict=True):
            self._record.random.append(RandomState({self._device}))
            (inputs,) = self._prefetcher.take(rows)
            self._prefetcher.allocate(following)
            with torch.no_grad():
                results.add(call(self._batch.ranks.model(), inputs), rows)
            self._prefetcher.copy()
            if self._refuse is not None and (name := self._record.buffers.rewind()) is not None:
                self._refuse(name)
            self._record.pieces.append(rows)
        return results

    def _decided(self) -> list[range]:
        """All pieces of the batch."""
        pieces, count = [range(0)], len(self._samples)
        while (begin := pieces[-1].stop) < count:
            pieces.append(range(begin, begin + self._sizing.size(count - begin)))
        return pieces[1:]

    def backward(
        self,
        gradients: Sequence[Tensor | None],
        check: Check | None,
        sums: WideSums | None = None,
        wanted: Sequence[Tensor] | None = None,
    ) -> InputGradients:
        """Runs each piece forward and backward, with the gradients of the outputs. Returns the gradients of the inputs.

        `check` is called with the outputs of each piece, and its rows. `sums`: accumulates gradients in half precision;
        None: sums for this batch only. `wanted`: the parameters that receive gradients; None: all."""
        self._warn_of_loss()
        now = RandomState({self._device})
        inputs = InputGradients(self._samples)
        own = WideSums(self._parameters) if sums is None and len(self._record.pieces) >= PIECES_FOR_SUMS else None
        sums = own if sums is None else sums
        try:
            with self._batch.layers():
                for index, rows in enumerate(self._record.pieces):
                    self._record.buffers.set_before()
                    if sums is not None and index + 1 == len(self._record.pieces) and self._batch.ranks.are_several:
                        sums.give_back()  # This backward averages all accumulated gradients over the ranks.
                        sums = None
                    self._piece_backward(index, rows, gradients, check, inputs, wanted)
                    if sums is not None:
                        sums.take()
                    self._tell(rows, len(self._samples))
        except BaseException:
            self._record.buffers.set_before()
            raise
        else:
            self._record.buffers.set_after()
        finally:
            self._prefetcher.drop()
            self._batch.ranks.finish()
            if own is not None:
                own.give_back()
            now.restore()
        _SAME_TWICE.add(self._model)
        return inputs

    def _warn_of_loss(self) -> None:
        """Warns once if the loss has taken more memory than the caller allows. Smaller pieces would not change that."""
        memory, model = self._batch.memory, self._model
        if memory is None or self._device.type != "cuda" or model in _WARNED:
            return
        peak = torch.cuda.max_memory_allocated(self._device)
        if peak > memory:
            _WARNED.add(model)
            warnings.warn(
                f"memlab: computing the loss took {readable(peak)}, more than memory={readable(memory)}. Smaller "
                "micro-batches do not help: the loss needs the outputs and gradients of the whole batch",
                stacklevel=2,
            )

    def _piece_backward(
        self,
        index: int,
        rows: range,
        gradients: Sequence[Tensor | None],
        check: Check | None,
        inputs: InputGradients,
        wanted: Sequence[Tensor] | None,
    ) -> None:
        random = self._record.random[index]
        is_last = index + 1 == len(self._record.pieces)
        following = None if is_last else self._record.pieces[index + 1]
        after = self._record.after if is_last else self._record.random[index + 1]
        ranks = self._batch.ranks

        def work(piece: Piece) -> None:
            part = _within(rows, piece.rows)
            random.restore()
            (samples,) = self._prefetcher.take(part)
            self._prefetcher.allocate(following if piece.following is None else _within(rows, piece.following))
            with torch.enable_grad(), self._record.autocast.again():
                results, _ = tree_flatten(call(ranks.model(is_last and piece.is_last), inputs.separate(samples)))
            if check is not None:
                check(results, part)
            pairs = [
                (result, gradient[part.start : part.stop])
                for result, gradient in zip(results, gradients, strict=True)
                if isinstance(result, Tensor) and result.requires_grad and gradient is not None
            ]
            if pairs:
                into = inputs.beside(wanted if piece.wanted is None else piece.wanted)
                with Autocast.off():
                    torch.autograd.backward(*zip(*pairs, strict=True), inputs=into)
            self._prefetcher.copy()
            inputs.take(part)

        try:
            parameters = self._parameters if wanted is None else wanted
            # A piece in which other ranks wait cannot be repeated.
            if (is_last and ranks.are_several) or ranks.are_in_step:
                work(Piece(range(len(rows)), is_last=True))
            elif random == after:
                run_pieces(len(rows), FixedSize(len(rows)), parameters, work, lambda part, is_whole: None)
            else:
                self._undivided(work, len(rows), parameters)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._sizing.failed(len(rows))
            raise torch.cuda.OutOfMemoryError(
                f"{error}\nmemlab: backward of {len(rows)} samples did not fit after the loss. The next batch is computed "
                f"in micro-batches of {max(len(rows) // 2, 1)}. Drop the gradients of this one (zero_grad)"
            ) from error

    def _undivided(self, work: Work, count: int, parameters: Sequence[Tensor]) -> None:
        """Runs a piece whose forward draws random numbers: halves would draw others. If it does not fit, it is repeated with
        its activations off the GPU."""
        marks = Marks(parameters)
        try:
            work(Piece(range(count), is_last=True))
            return
        except Exception as error:
            if not is_out_of_memory(error) or self._device.type != "cuda":
                raise
            failed = error
        make_room(failed)
        self._sizing.failed(count)
        left = marks.untouched()
        if left or self._inputs:
            budget = int(_SHARE_OF_ACTIVATIONS * room_on(self._device, self._batch.memory))
            with offload_activations(budget, device=self._device):
                work(Piece(range(count), left, is_last=True))


class _ReplayedOutputs(torch.autograd.Function):
    """A model's outputs, with `Replay.receive` as their backward."""

    @staticmethod
    def forward(ctx: Any, replay: Replay, form: list[Any], anchor: Tensor, *begin: Tensor) -> tuple[Any, ...]:
        leaves, shape = tree_flatten(replay.forward())
        form.append(shape)
        ctx.replay = replay
        ctx.set_materialize_grads(False)
        replay.note(leaves)
        # (Detached, since the leaves of a single piece may be views, which forbid writing.)
        outputs = tuple(leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        ctx.mark_non_differentiable(*[one for one in outputs if isinstance(one, Tensor) and not one.dtype.is_floating_point])
        return outputs

    @staticmethod
    @first_order
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, None, None, *ctx.replay.receive(ctx, gradients))


def _shape_of(gradient: Tensor) -> Tensor:
    """A tensor of the gradient's shape with one element of memory."""
    return gradient.new_zeros(()).expand_as(gradient)


def _within(rows: range, part: range) -> range:
    """Converts a part of a piece into samples of the batch."""
    return range(rows.start + part.start, rows.start + part.stop)
