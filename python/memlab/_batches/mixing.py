"""Checks that a model computes samples independently, as pieces require: tried once for each model, with 2 or 3 samples."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from memlab._batches.batch import Batch
from memlab._batches.batchnorm import mixing_layers
from memlab._batches.nested import named_arguments, unjoinable
from memlab._batches.out_of_memory import is_out_of_memory, make_room
from memlab._batches.shared_draws import shared_draws
from memlab._batches.state import RandomState, evaluating
from memlab._batches.trial import DrewRandomNumbers, Trial, TrialForm, weighted_sum
from memlab._paging.torch_private import tree_flatten

# Maximum number of samples that are compared, each alone.
_MOST = 3
_RANDOM = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.MultiheadAttention,
    nn.RNNBase,
)


@dataclass(frozen=True)
class _Found:
    mixes: bool = False
    #: The error for an output whose samples are not in its first dimension; None: no such output.
    unjoinable: str | None = None
    #: The random numbers that all samples share, for messages; None: none.
    shared: str | None = None


# By model and training mode.
_FOUND: WeakKeyDictionary[nn.Module, dict[bool, _Found]] = WeakKeyDictionary()


def look_for_mixing(batch: Batch, *, joins: bool, size: int = _MOST) -> None:
    """Tests whether the outputs or gradients of the first samples change when other samples are in the batch.

    These forwards leave no trace. Models that are random in evaluation mode too, whose shards wait for other ranks, or that
    fail with a few samples are not tried.

    Args:
        batch: the batch, which goes through in pieces.
        joins: whether the outputs of pieces are joined.
        size: samples of a piece: a number that is known to fit, or is about to be tried.

    Raises:
        RuntimeError: the model mixes samples. (A warning instead, where that is allowed.)
        ValueError: an output that is to be joined has no row for each sample.
    """
    known = _FOUND.setdefault(batch.model, {})
    is_new = batch.model.training not in known
    if is_new:
        if len(batch.samples) < 2:
            return
        known[batch.model.training] = _found(batch, size)
    found = known[batch.model.training]
    if joins and found.unjoinable is not None:
        raise ValueError(found.unjoinable)
    if found.mixes:
        what = (
            "the model's outputs for a sample depend on the other samples of its batch (a mean or attention over samples, "
            "or a first dimension other than the samples, as in nn.LSTM without batch_first)"
        )
        instead = "Return per-sample outputs from the model, and compare samples in the loss"
    elif found.shared is not None:
        what = (
            f"all samples of a batch share random numbers of the model ({found.shared}), as with one dropout mask for all "
            "or dropped layers"
        )
        instead = "Draw them for each sample, or set their probability to 0"
    else:
        return
    if batch.refuse is not None:
        raise RuntimeError(
            f"{what}, so micro-batches would not give the gradients of the whole batch. {instead}. memlab.accumulate and "
            "InfinityBatch allow it with exact=False"
        )
    if is_new:
        warnings.warn(f"memlab, not exact: {what}; micro-batches see fewer samples than the whole batch", stacklevel=3)


def _found(batch: Batch, size: int) -> _Found:
    if batch.ranks.are_in_step:
        return _Found()
    # (Other code handles BatchNorm in training: in lockstep it is exact.)
    modes = [evaluating] if mixing_layers(batch.model) else [_without_dropout, evaluating]
    random = RandomState({batch.device})
    try:
        for quiet in modes:
            with quiet(batch.model):
                # BatchNorm without running statistics mixes samples in evaluation mode too.
                if mixing_layers(batch.model):
                    return _Found()
                found = _tried(batch, size)
            if found is not None:
                break
        found = found or _Found()
        if batch.model.training and not found.mixes:
            random.restore()
            found = replace(found, shared=_shared_draws(batch, size))
    finally:
        random.restore()
    return found


def _shared_draws(batch: Batch, size: int) -> str | None:
    """The random numbers that all samples share, found with the first form of trial that works."""
    model = batch.ranks.model()
    for pieces in _divisions(len(batch.samples), size):
        for kind in (TrialForm.REPLICA, TrialForm.ITSELF):
            try:
                trial = Trial(model, batch.samples, batch.device, batch.memory, kind)
                return shared_draws(trial, range(pieces[-1].stop), pieces[0], batch.device)
            except Exception as error:  # The batch's pieces fail with the same error.
                make_room(error)
    return None


def _tried(batch: Batch, size: int) -> _Found | None:
    """The result of the first form of trial that works; None: the model draws random numbers."""
    model = batch.ranks.model()
    for pieces in _divisions(len(batch.samples), size):
        for kind in TrialForm.of(model, is_sharded=False):
            try:
                return _compared(Trial(model, batch.samples, batch.device, batch.memory, kind), pieces)
            except DrewRandomNumbers:
                return None
            except Exception as error:  # The batch's pieces fail with the same error.
                is_too_large = is_out_of_memory(error)
                make_room(error)
        if is_too_large:
            return _Found()
    for name, value in named_arguments(batch.samples.piece(range(len(batch.samples)))):
        if isinstance(value, (list, tuple)) and len(value) > 1 and all(isinstance(one, Tensor) for one in value):
            raise ValueError(
                f"{name} is a list of tensors, and the model fails on some rows of each. If each tensor is one sample, pass "
                "one padded tensor with their sizes, and split it in the model's forward"
            )
    return _Found()


def _divisions(count: int, size: int) -> list[list[range]]:
    """Divides a few samples into single ones, or into two pieces for a model that needs several at once."""
    singles = [range(index, index + 1) for index in range(min(max(size, 2), _MOST, count))]
    two = [range(size), range(size, min(2 * size, count))]
    return [singles, two] if 1 < size < count else [singles]


def _compared(trial: Trial, pieces: list[range]) -> _Found:
    """Compares the results of samples computed together and in pieces."""
    rows = range(pieces[-1].stop)
    outputs = [trial.outputs(part) for part in [rows, *pieces]]
    counts = [len(part) for part in [rows, *pieces]]
    wrong = (
        unjoinable(leaf, count, name)
        for leaves, count in zip(outputs, counts, strict=True)
        for leaf, name in zip(leaves, trial.names, strict=False)
    )
    unjoined = next((message for message in wrong if message is not None), None)
    if len(set(map(len, outputs))) > 1:
        return _Found(mixes=True, unjoinable=unjoined)  # The number of outputs depends on that of samples.
    shapes = {
        index: [leaf.shape[1:] for leaf in leaves]
        for index, leaves in enumerate(zip(*outputs, strict=True))
        if all(_is_of(leaf, count) for leaf, count in zip(leaves, counts, strict=True))
    }
    # (Outputs of other shapes are, for example, as long as the longest sample.)
    compared = [index for index, tails in shapes.items() if len(set(tails)) == 1]
    compares = any(_compares(tails, counts) for tails in shapes.values())
    if compares or not compared:
        return _Found(compares, unjoined)

    def objective(outputs: Any, part: range) -> tuple[Tensor, list[Tensor]]:
        """A weighted sum of all outputs, and the outputs at their rows among all samples."""
        leaves, _ = tree_flatten(outputs)
        terms, beside = [torch.zeros((), dtype=torch.float64, device=leaves[compared[0]].device)], []
        for index in compared:
            leaf = leaves[index]
            shape = (len(rows), *leaf.shape[1:])
            weights = torch.randn(shape, generator=torch.Generator().manual_seed(index))[part.start : part.stop]
            terms.append((leaf.double() * weights.to(leaf.device)).sum().to(terms[0].device))
            beside.append(leaf.new_zeros(shape))
            beside[-1][part.start : part.stop] = leaf.detach()
        return torch.stack(terms).sum(), beside

    whole, moved = trial.seen(rows, objective), trial.seen(rows, objective, moved=True)
    parts = weighted_sum([(trial.seen(part, objective), 1.0) for part in pieces])
    # A model with different results each time does not count as mixing.
    mixes = trial.are_apart(whole, moved, parts) and not trial.are_apart(whole, moved, trial.seen(rows, objective))
    return _Found(mixes, unjoined)


def _is_of(leaf: Any, samples: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype.is_floating_point and leaf.dim() > 0 and leaf.shape[0] == samples


def _compares(tails: Sequence[torch.Size], counts: Sequence[int]) -> bool:
    """True if an output has a row and a column for each sample."""
    return len(set(tails)) > 1 and any(list(lengths) == list(counts) for lengths in zip(*tails, strict=False))


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    """Runs a block in which layers that draw random numbers in training are in evaluation mode."""
    layers = [module for module in model.modules() if isinstance(module, _RANDOM) and module.training]
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer in layers:
            layer.training = True
