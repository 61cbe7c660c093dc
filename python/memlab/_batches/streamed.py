"""Batches that an iterable gives in pieces, and that are never in memory as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from memlab._batches.batch import Batch
from memlab._batches.criteria import Mean
from memlab._batches.gradient_accumulation import GradientAccumulation
from memlab._batches.gradients import PIECES_FOR_SUMS, WideSums
from memlab._batches.mixing import look_for_mixing
from memlab._batches.model_loss import ModelLoss, labels_of
from memlab._batches.nested import Samples, joined
from memlab._batches.observers import observer
from memlab._batches.output_leaves import as_output
from memlab._batches.repeatability import FirstOutputs
from memlab._batches.replay import ForwardRecord, Replay
from memlab._batches.state import Autocast, Buffers
from memlab._batches.tracked_loader import divided
from memlab._batches.weighted import WeightedBackward, part_of
from memlab._paging.torch_private import tree_flatten, tree_unflatten, versions_of

Scale = Callable[[Tensor], Tensor]
BatchOf = Callable[[Any], Batch]


@dataclass(frozen=True)
class Given:
    """A piece, as given by the iterable."""

    inputs: Any
    targets: Samples | None


def given_by(pieces: Iterable[Any], *, have_targets: bool) -> Iterator[Given]:
    """Yields the pieces, without keeping any.

    Raises:
        ValueError: the iterable is empty; a piece has no samples, or not as many targets.
    """
    nothing = True
    for piece in pieces:
        nothing = False
        given = _given(piece, have_targets)
        del piece  # Freed before the next is read.
        yield given
        del given
    if nothing:
        raise ValueError("the batch has no samples: the iterable yields nothing")


def _given(piece: Any, have_targets: bool) -> Given:
    inputs, targets = _divided(piece) if have_targets else (piece, None)
    samples = Samples(inputs)
    if any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in samples.leaves):
        raise ValueError(
            "tensors that require gradients cannot come from an iterable: detach() them, or pass the batch as a whole"
        )
    goals = None if targets is None else Samples(targets)
    if goals is not None and len(goals) != len(samples):
        raise ValueError(f"a micro-batch has {len(samples)} samples, but {len(goals)} targets")
    return Given(inputs, goals)


def _divided(piece: Any) -> tuple[Any, Any]:
    if isinstance(piece, (tuple, list)) and len(piece) > 1:
        return divided(piece)
    return (piece[0] if isinstance(piece, (tuple, list)) else piece), None


@dataclass(frozen=True)
class _Part:
    """A piece with its backward, not computed yet."""

    batch: Batch
    weighted: WeightedBackward


class StreamedMean:
    """A mean whose denominator D is not known before the last piece.

    Until then gradients are those of sums, divided by D of the first piece. Before the last piece they are rescaled to the
    final D. So the last backward, which averages over several ranks, is the same as for any batch.
    """

    def __init__(self, pieces: Iterator[Given], batch_of: BatchOf, loss_fn: Any) -> None:
        self._pieces = pieces
        self._batch_of = batch_of
        self._loss_fn = loss_fn
        self._tell = observer()
        self._begin = 0
        self._loss: Tensor | None = None
        # D of the pieces so far, and the current divisor.
        self._total: Tensor | int = 0
        self._every: Tensor | int = 1

    def run(self, scale: Scale) -> Tensor:
        """Adds to the gradients, and returns the loss without a graph."""
        first = next(self._pieces)
        batch = self._batch_of(first.inputs)
        mean = self._mean(batch)
        if self._loss_fn is not None:
            look_for_mixing(batch, joins=False)
        part: _Part | None = _Part(batch, WeightedBackward(batch, _targets(first, self._loss_fn), mean))
        with batch.layers(), GradientAccumulation(batch) as progress:
            del first, batch
            while part is not None:
                following = self._next(mean, part.batch)
                try:
                    self._add(part, following, mean, progress, scale)
                except BaseException:
                    if following is not None:
                        following.weighted.drop()
                    raise
                part = following
                del following  # Freed before the next is read.
        assert self._loss is not None, "there is a piece"
        return self._loss

    def _next(self, mean: Mean | ModelLoss, current: Batch) -> _Part | None:
        """Reads the next piece before the current one is computed, to detect the last one and to prefetch."""
        tensors = [leaf for leaf in current.samples.leaves if isinstance(leaf, Tensor)]
        versions = versions_of(tensors)
        given = next(self._pieces, None)
        if versions_of(tensors) != versions:
            raise RuntimeError(
                "the iterable has overwritten a micro-batch before it was computed: memlab reads one ahead. Yield new "
                "tensors (clone())"
            )
        if given is None:
            return None
        batch = self._batch_of(given.inputs)
        return _Part(batch, WeightedBackward(batch, _targets(given, self._loss_fn), mean))

    def _add(
        self, part: _Part, following: _Part | None, mean: Mean | ModelLoss, progress: GradientAccumulation, scale: Scale
    ) -> None:
        batch, weighted = part.batch, part.weighted
        self._total = self._total + weighted.weight
        if self._loss is None:
            self._every = _not_zero(weighted.weight)
            if following is not None:
                progress.set_aside()
        if following is None:
            known = batch.ranks.part_of_all(self._total, batch.device)
            if self._loss is not None:
                missing = 1.0 if mean.is_sum else part_of(self._every, known, self._loss)
                progress.rescale(missing)
                self._loss = self._loss * missing
            self._every = known
        begin, count = self._begin, len(batch.samples)
        self._begin += count
        added = weighted.add(
            scale,
            progress,
            self._every,
            lambda rows: self._tell(range(begin + rows.start, begin + rows.stop), begin + count),
            None if following is None else following.weighted,
        )
        self._loss = added if self._loss is None else self._loss + added

    def _mean(self, batch: Batch) -> Mean | ModelLoss:
        if self._loss_fn is not None:
            mean = Mean.of(self._loss_fn)
            assert mean is not None, "the way was chosen for it"
            return mean
        if len(batch.samples) < 2:
            raise ValueError(
                "the first micro-batch has one sample, but memlab needs two to find the weights of the model's own loss"
            )
        return ModelLoss.of(batch.ranks.model(), batch.samples, batch.device, batch.memory)


def _targets(piece: Given, loss_fn: Any) -> Samples | None:
    labels = labels_of(piece.inputs) if loss_fn is None else None
    return piece.targets if labels is None else Samples(labels)


def _not_zero(weight: Tensor | int) -> Tensor | int:
    """The provisional divisor of sums until the final one is known."""
    return weight.where(weight != 0, 1) if isinstance(weight, Tensor) else weight or 1


class StreamedReplay:
    """Replay for a loss of all outputs: the iterable gives its pieces twice, for their forward and for their backward."""

    def __init__(self, pieces: Callable[[], Iterator[Given]], batch_of: BatchOf) -> None:
        self._pieces = pieces
        self._batch_of = batch_of
        self._tell = observer()

    def run(self, loss_of: Callable[[Any, Any], Tensor], scale: Scale) -> Tensor:
        """Adds the gradients of `loss_of` outputs and targets, and returns the loss without a graph."""
        records, rows, outputs, targets = self._forward()
        leaves, form = tree_flatten(outputs)
        leaves = [
            leaf.requires_grad_() if isinstance(leaf, Tensor) and leaf.dtype.is_floating_point else leaf for leaf in leaves
        ]
        first = FirstOutputs(leaves, rows[0])
        loss = loss_of(tree_unflatten([as_output(leaf) for leaf in leaves], form), targets)
        with Autocast.off():
            scale(loss).backward()
        self._backward(records, rows, leaves, first)
        return loss.detach()

    def _forward(self) -> tuple[list[ForwardRecord], list[range], Any, Any]:
        records: list[ForwardRecord] = []
        rows: list[range] = []
        outputs, targets = [], []
        buffers: Buffers | None = None
        refuse: Callable[[str], None] | None = None
        for piece in self._pieces():
            batch = self._batch_of(piece.inputs)
            if not rows:
                look_for_mixing(batch, joins=True)
            records.append(ForwardRecord())
            with batch.layers():
                buffers = Buffers(batch.model) if buffers is None else buffers
            outputs.append(Replay(replace(batch, ranks=batch.ranks.apart()), records[-1]).forward())
            if piece.targets is not None:
                targets.append(piece.targets.piece(range(len(piece.targets)), batch.device))
            begin = rows[-1].stop if rows else 0
            rows.append(range(begin, begin + len(batch.samples)))
            # Each piece finds the buffers from before the batch, or after the previous piece if they may depend on samples.
            refuse = batch.refuse
            if refuse is not None and (name := buffers.rewind()) is not None:
                refuse(name)
            del piece, batch  # Freed before the next is read.
        if buffers is not None and refuse is not None:
            buffers.set_after()
        return records, rows, joined(outputs, rows), joined(targets, rows) if targets else None

    def _backward(self, records: list[ForwardRecord], rows: list[range], leaves: list[Any], first: FirstOutputs) -> None:
        sums: WideSums | None = None
        index = -1
        try:
            for index, piece in enumerate(self._pieces()):
                batch = self._batch_of(piece.inputs)
                self._check(index < len(rows) and len(rows[index]) == len(batch.samples), index)
                if sums is None and sum(len(record.pieces) for record in records) >= PIECES_FOR_SUMS:
                    sums = WideSums(batch.parameters)
                part = slice(rows[index].start, rows[index].stop)
                tensors = [leaf if isinstance(leaf, Tensor) else None for leaf in leaves]
                gradients = [None if one is None or one.grad is None else one.grad[part] for one in tensors]
                batch = batch if index + 1 == len(rows) else replace(batch, ranks=batch.ranks.apart())

                def check(results: Sequence[Any], part: range, begin: int = rows[index].start) -> None:
                    first.check(results, range(begin + part.start, begin + part.stop))

                Replay(batch, records[index]).backward(gradients, check, sums)
                del piece, batch
        finally:
            if sums is not None:
                sums.give_back()
        self._check(index + 1 == len(rows), index)

    def _check(self, is_same: bool, index: int) -> None:
        if not is_same:
            raise RuntimeError(
                f"the iterable yields another micro-batch the second time (number {index + 1}), but this loss needs the "
                "same ones: use shuffle=False in a DataLoader. Drop the gradients of this batch (zero_grad)"
            )
