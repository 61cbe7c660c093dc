"""The loss that a model computes itself, as Hugging Face's do: of what it is the mean is found by trying."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from memlab._batches.nested import Samples, call
from memlab._batches.state import Buffers, evaluating

# What such models do not count.
_IGNORED = -100
# What the loss of two samples may differ from the mean of theirs, by rounding.
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}
_COARSE_ROUNDING = 1e-2
# Losses on a simulated card, whose kernels compute nothing.
_NOTHING = 1e-30

_INSTEAD = "Have the model return its outputs, and give memlab.accumulate the loss as loss_fn"

_FOUND: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def _samples(labels: Tensor) -> Tensor:
    return torch.tensor(len(labels))


def _labels(labels: Tensor) -> Tensor:
    return (labels != _IGNORED).sum()


def _next_labels(labels: Tensor) -> Tensor:
    return (labels[..., 1:] != _IGNORED).sum()


# What a mean may be over, by name. Next labels: those of language models, whose first label is no word's successor.
_OVER: dict[str, Callable[[Tensor], Tensor]] = {"samples": _samples, "labels": _labels, "next labels": _next_labels}
# Not a mean: what it is divided by was given to the model, as Hugging Face's Trainer does.
_SUM = "the sum"


class OwnLoss:
    """What a model returns as its loss, for pieces: a mean over samples or labels, or a sum."""

    def __init__(self, over: str) -> None:
        self.over = over
        self.is_sum = over == _SUM

    @staticmethod
    def of(model: nn.Module, samples: Samples, device: torch.device, instead: str = _INSTEAD) -> OwnLoss:
        """Finds out of what the model's loss is the mean: from the losses of two samples, apart and together.

        `instead`: what to do if it is no mean, for the message.

        Raises:
            ValueError: it returns no loss, or one that is no such mean.
        """
        if len(samples) < 2:
            return OwnLoss("samples")  # There is one piece.
        if model not in _FOUND:
            _FOUND[model] = _found(model, samples, device, instead)
        return OwnLoss(_FOUND[model])

    def weight(self, samples: int, labels: Any) -> Tensor | int:
        """D of a piece."""
        return samples if self.over not in _OVER or self.over == "samples" or labels is None else _OVER[self.over](labels)

    def countable(self, labels: Any) -> Any:
        """Nothing is changed: the model has its labels among its inputs."""
        return labels

    def __call__(self, outputs: Any, labels: Any) -> Tensor:
        return loss_in(outputs)


def labels_of(inputs: Any) -> Tensor | None:
    """The labels among a model's inputs."""
    labels = inputs.get("labels") if hasattr(inputs, "get") else None
    return labels if isinstance(labels, Tensor) else None


def loss_in(outputs: Any) -> Tensor:
    """The loss among what a model returns. Raises ValueError if there is none."""
    loss = outputs.get("loss") if isinstance(outputs, dict) else getattr(outputs, "loss", None)
    if not isinstance(loss, Tensor):
        raise ValueError(
            f"the model returns a {type(outputs).__name__} without a loss: give it labels, or give memlab a loss_fn of its "
            "outputs"
        )
    return loss


def _found(model: nn.Module, samples: Samples, device: torch.device, instead: str) -> str:
    inputs = samples.piece(range(2), device)
    labels = labels_of(inputs)
    over = ["samples"]
    if labels is not None and not labels.is_floating_point():
        over = list(_OVER) if labels.dim() > 1 else ["samples", "labels"]
        inputs = {**inputs, "labels": _unlike(labels)}
    both = Samples(inputs)
    buffers = Buffers(model)
    with evaluating(model):  # Without dropout, whose masks would differ.
        pieces = [both.piece(rows) for rows in (range(2), range(1), range(1, 2))]
        losses = [loss_in(call(model, piece)) for piece in pieces]
    buffers.set_before()
    whole, *parts = (float(loss) for loss in losses)
    counts = {name: [_OVER[name](_labels_or_rows(piece)) for piece in pieces] for name in over}

    def error(name: str) -> float:
        if name == _SUM:
            return abs(sum(part for part in parts if part == part) - whole)
        whole_count, *part_counts = (float(count) for count in counts[name])
        pairs = zip(part_counts, parts, strict=True)
        distance = abs(sum(count * loss for count, loss in pairs if count) / max(whole_count, 1) - whole)
        return distance if distance == distance else math.inf  # The mean of no labels is NaN.

    best = min([*over, _SUM], key=error)
    if not error(best) <= _ROUNDING.get(losses[0].dtype, _COARSE_ROUNDING) * abs(whole) + _NOTHING:
        raise ValueError(
            f"the model's own loss is no mean over {', '.join(over)}, and no sum: of two samples it is {whole:.6g}, and of "
            f"each alone {parts[0]:.6g} and {parts[1]:.6g}. {instead}"
        )
    return best


def _unlike(labels: Tensor) -> Tensor:
    """Labels of two samples of which the second has half as many that count, so that means over this or that differ."""
    labels = labels.where(labels != _IGNORED, 0)
    if labels.dim() == 1:
        labels[1] = _IGNORED
    else:
        length = labels.shape[-1]
        labels[1, ..., (length + 1) // 2 if length > 1 else 0 :] = _IGNORED
    return labels


def _labels_or_rows(piece: Any) -> Tensor:
    labels = labels_of(piece)
    return torch.empty(len(Samples(piece))) if labels is None else labels
