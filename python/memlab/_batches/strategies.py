"""Strategies to compute a batch, and the choice of one by model and loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from memlab._batches.batch import Batch
from memlab._batches.batchnorm import check_choice, frozen, ghost, mixing_layers, tracking_layers
from memlab._batches.criteria import Mean

PIECES, REPLAY, WHOLE, LOCKSTEP = "micro-batches", "replay", "whole batch", "lockstep"

#: Each strategy in words, for the printed plan.
STRATEGIES = {
    PIECES: "each micro-batch forward and backward, weighted by its part of the mean",
    REPLAY: "all micro-batches forward, the loss of all outputs, each one forward again and backward",
    WHOLE: "one forward; activations that do not fit leave the GPU",
    LOCKSTEP: "micro-batches in threads, which wait for each other at each BatchNorm",
}
# Reasons against the other strategies.
_NO_STATISTICS = "no layer needs statistics of all samples"
_OTHER_STATISTICS = "statistics would be those of a micro-batch"
_INSTEAD = {
    PIECES: {REPLAY: "each forward would run twice", f"{WHOLE}, {LOCKSTEP}": _NO_STATISTICS},
    REPLAY: {
        PIECES: "the loss is not known to be a mean or a sum over samples",
        f"{WHOLE}, {LOCKSTEP}": _NO_STATISTICS,
    },
    WHOLE: {f"{PIECES}, {REPLAY}": _OTHER_STATISTICS, LOCKSTEP: "only if an operation on the whole batch does not fit"},
    LOCKSTEP: {f"{PIECES}, {REPLAY}": _OTHER_STATISTICS, WHOLE: "micro_batch asks for micro-batches"},
}


@dataclass(frozen=True)
class Strategy:
    """The strategy of a batch, and the reason for it."""

    name: str
    reason: str
    #: Treatment of BatchNorm in training: "ghost" or "frozen"; None: unchanged.
    batchnorm: str | None = None
    #: The inexact part, if the caller has allowed it.
    inexact: str | None = None
    #: Size of the pieces, in words; None: no pieces, or not requested.
    pieces: str | None = None

    def prepared(self, batch: Batch) -> Batch:
        """The batch, with the model's layers in the modes of this strategy while it is computed."""
        if self.batchnorm is None:
            return batch
        layers = (
            partial(frozen, batch.model) if self.batchnorm == "frozen" else partial(ghost, batch.model, len(batch.samples))
        )
        # In ghost mode each piece changes running statistics, as intended.
        return replace(batch, layers=layers, refuse=batch.refuse if self.batchnorm == "frozen" else None)

    def __str__(self) -> str:
        """The list of strategies with this one marked, the reasons for it and against the others, and the size of pieces."""
        rows = [f"{'→' if name == self.name else ' '} {name:<14} {what}" for name, what in STRATEGIES.items()]
        others = [f"not {names}: {why}" for names, why in _INSTEAD[self.name].items()]
        pieces = [] if self.pieces is None else [f"micro-batch size: {self.pieces}"]
        return "\n".join([*rows, "", f"{self.name}: {self.reason}", *others, *pieces])


def check_exact(exact: bool) -> None:
    """Raises ValueError unless `exact` is True or False."""
    if not isinstance(exact, bool):
        raise ValueError(f"exact={exact!r}: must be True or False")


def strategy_of(
    model: nn.Module,
    loss_fn: Callable[..., Any] | None,
    *,
    device: torch.device,
    in_pieces: bool,
    exact: bool,
    batchnorm: str,
    has_own_loop: bool = False,
    samples: int | None = None,
) -> Strategy:
    """The strategy of a batch of `samples` samples (None: not known). `in_pieces`: the caller wants pieces.
    `has_own_loop`: the caller computes the loss.

    Raises:
        RuntimeError: no strategy is right; the message names the options that would allow one.
        ValueError: `batchnorm` is not one of its choices.
    """
    check_choice(batchnorm)
    check_exact(exact)
    at_once = not in_pieces and (exact or device.type != "cuda")
    layers, by_loss = mixing_layers(model), _by_loss(loss_fn, samples, has_own_loop=has_own_loop)
    if not layers:
        return _by_statistics(model, by_loss, exact=exact, at_once=at_once)
    name, layer = next(iter(layers.items()))
    mode = "in training" if layer.training else "without running statistics"
    mixes = f"{name or 'the model'} is a {type(layer).__name__} {mode}, which mixes all samples of a batch"
    if batchnorm == "frozen":
        without = next((name for name, layer in layers.items() if layer.running_mean is None), None)
        if without is not None:
            raise RuntimeError(f"batchnorm='frozen': {without} keeps no running statistics (track_running_stats=False)")
        return Strategy(by_loss.name, f"{by_loss.reason}; BatchNorm keeps its statistics (batchnorm='frozen')", "frozen")
    if batchnorm == "ghost":
        why = f"{by_loss.reason}; each micro-batch has its own statistics (batchnorm='ghost')"
        return Strategy(by_loss.name, why, "ghost")
    if batchnorm == "refuse":
        raise RuntimeError(
            f"micro-batches would not give the gradients of this batch: {mixes}. batchnorm='exact' computes it exactly, "
            "'frozen' keeps the statistics, 'ghost' uses those of each micro-batch"
        )
    if at_once:
        return Strategy(WHOLE, mixes)
    if not exact:
        return Strategy(
            by_loss.name, f"{by_loss.reason}; {mixes}", inexact=f"{mixes}: each micro-batch has its own statistics"
        )
    return Strategy(LOCKSTEP, mixes)


def _by_statistics(model: nn.Module, by_loss: Strategy, *, exact: bool, at_once: bool) -> Strategy:
    """The strategy of a model without BatchNorm: chosen by its loss, unless a layer has running statistics of all
    samples."""
    tracking = next(iter(tracking_layers(model).items()), None)
    if tracking is None:
        return by_loss
    name, layer = tracking
    tracks = f"{name or 'the model'} is a {type(layer).__name__} with running statistics of all samples of a batch"
    if at_once:
        return Strategy(WHOLE, tracks)
    # (In pieces such buffers are refused when they differ.)
    return by_loss if exact else replace(by_loss, inexact=f"{tracks}: they change with each micro-batch")


def _by_loss(loss_fn: Callable[..., Any] | None, samples: int | None, *, has_own_loop: bool) -> Strategy:
    if has_own_loop:
        return Strategy(REPLAY, "the loss is computed outside, and may compare samples with each other")
    if loss_fn is None:
        return Strategy(PIECES, "the model's own loss is a mean over samples or labels")
    what = getattr(loss_fn, "__name__", type(loss_fn).__name__)
    if Mean.of(loss_fn, samples) is not None:
        return Strategy(PIECES, f"{what} is a mean or a sum over samples")
    if Mean.is_weighted(loss_fn):
        return Strategy(REPLAY, f"{what} has weights for samples of the whole batch")
    return Strategy(REPLAY, f"{what} is not a PyTorch criterion, and may compare samples with each other")
