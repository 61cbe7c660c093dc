"""Whether samples go through a model without each other, as pieces need it: tried once for each model, with two or three."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from memlab._batches.batch import Batch
from memlab._batches.batchnorm import mixing_layers
from memlab._batches.nested import call, unjoinable
from memlab._batches.out_of_memory import make_room
from memlab._batches.same_twice import are_apart
from memlab._batches.state import Buffers, RandomState, evaluating
from memlab._paging.torch_private import tree_flatten

# What outputs differ by, as a share of their length, if samples meet: much more than rounding in other kernels makes it.
_APART, _APART_IN_HALVES = 0.05, 0.25
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
    #: What is wrong with an output whose samples are not in its first dimension; None: nothing.
    unjoinable: str | None = None


# By the model, and whether it is in training.
_FOUND: WeakKeyDictionary[nn.Module, dict[bool, _Found]] = WeakKeyDictionary()


def look_for_mixing(batch: Batch, *, joins: bool, size: int = _MOST) -> None:
    """Tries whether the first samples give other outputs when another sample is beside them.

    Nothing is left of these forwards. A model that is random in evaluation mode too, that is compiled (which other sizes
    have compiled again), whose shards wait for other ranks, or that fails with so few samples, is not tried.

    Args:
        batch: the batch, which goes through in pieces.
        joins: whether outputs of pieces are put together.
        size: samples of a piece. So many are known to fit, or are about to be tried.

    Raises:
        RuntimeError: they do. (If that is allowed, it is said as a warning.)
        ValueError: an output has no row for each sample, and is to be joined.
    """
    known = _FOUND.setdefault(batch.model, {})
    is_new = batch.model.training not in known
    if is_new:
        count = min(max(size, 2), _MOST, len(batch.samples))
        if count < 2:
            return
        known[batch.model.training] = _found(batch, count)
    found = known[batch.model.training]
    if joins and found.unjoinable is not None:
        raise ValueError(found.unjoinable)
    if not found.mixes:
        return
    what = "the model's outputs for a sample depend on which others are in its batch (a mean or attention over samples)"
    if batch.refuse is not None:
        raise RuntimeError(
            f"{what}, so pieces would not give the gradients of the whole batch. Have the model return what it computes of "
            "each sample, and compare samples in the loss. memlab.accumulate and InfinityBatch allow it with exact=False"
        )
    if is_new:
        warnings.warn(f"memlab, not exact: {what}, and pieces have others than the whole batch", stacklevel=3)


def _found(batch: Batch, count: int) -> _Found:
    is_compiled = any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in batch.model.modules()
    )
    if is_compiled or batch.ranks.are_in_step:
        return _Found()
    trial, random = _Trial(batch), RandomState({batch.device})
    try:
        with torch.no_grad():
            # (BatchNorm in training is somebody else's: in lockstep it is exact.)
            for quiet in [evaluating] if mixing_layers(batch.model) else [_without_dropout, evaluating]:
                with quiet(batch.model):
                    found = None if mixing_layers(batch.model) else trial.found(count)
                if found is not None:
                    return found
    except Exception as error:  # It may be for larger batches only. Otherwise its pieces fail too, and say why.
        make_room(error)
    finally:
        trial.buffers.set_before()
        random.restore()
    return _Found()


class _Trial:
    """Forwards of the first samples, each with the buffers that the batch finds."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self.buffers = Buffers(batch.model)
        halves = (torch.float16, torch.bfloat16)
        is_coarse = torch.is_autocast_enabled(batch.device.type) or any(one.dtype in halves for one in batch.parameters)
        self._share = _APART_IN_HALVES if is_coarse else _APART

    def found(self, count: int) -> _Found | None:
        """What so many samples and one less give; None: that says nothing, since the model draws random numbers."""
        before = RandomState({self._batch.device})
        many = self._outputs(count)
        if RandomState({self._batch.device}) != before:
            return None
        few = self._outputs(count - 1)
        wrong = [unjoinable(leaf, size) for leaves, size in ((few, count - 1), (many, count)) for leaf in leaves]
        return _Found(
            mixes=_compares(few, many, count)
            # Not if it gives something else each time.
            or (self._differ(few, many, count - 1) and not self._differ(few, self._outputs(count - 1), count - 1)),
            unjoinable=next((message for message in wrong if message is not None), None),
        )

    def _outputs(self, count: int) -> list[Any]:
        self.buffers.set_before()
        leaves, _ = tree_flatten(
            call(self._batch.ranks.model(), self._batch.samples.piece(range(count), self._batch.device))
        )
        return leaves

    def _differ(self, few: Sequence[Any], many: Sequence[Any], rows: int) -> bool:
        """Whether the same samples have given something else, in an output that has rows of samples."""
        return any(
            are_apart(one, other[:rows], self._share)
            for one, other in zip(few, many, strict=True)
            if _is_of(one, rows) and isinstance(other, Tensor) and one.shape == other[:rows].shape and other.shape[0] >= rows
        )


def _is_of(leaf: Any, samples: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype.is_floating_point and leaf.dim() > 0 and leaf.shape[0] == samples


def _compares(few: Sequence[Any], many: Sequence[Any], count: int) -> bool:
    """Whether an output has a row and a column for each sample."""
    return any(
        _is_of(one, count - 1)
        and _is_of(other, count)
        and any(pair == (count - 1, count) for pair in zip(one.shape[1:], other.shape[1:], strict=False))
        for one, other in zip(few, many, strict=True)
    )


@contextmanager
def _without_dropout(model: nn.Module) -> Iterator[None]:
    """Runs a block in which layers that draw random numbers in training do not."""
    layers = [module for module in model.modules() if isinstance(module, _RANDOM) and module.training]
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer in layers:
            layer.training = True
