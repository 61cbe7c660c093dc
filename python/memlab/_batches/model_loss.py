"""The loss that a model computes itself, as Hugging Face's models do. Trials find the denominator of its mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from memlab._batches.nested import Samples
from memlab._batches.out_of_memory import make_room
from memlab._batches.ranks import Ranks
from memlab._batches.state import evaluating
from memlab._batches.trial import Trial, TrialForm, weighted_sum

# The label that such models ignore.
_IGNORED = -100
_INSTEAD = "Return the outputs from the model, and pass the loss to memlab.accumulate as loss_fn"

_FOUND: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def _samples(labels: Tensor) -> Tensor:
    return torch.tensor(len(labels))


def _labels(labels: Tensor) -> Tensor:
    return (labels != _IGNORED).sum()


def _next_labels(labels: Tensor) -> Tensor:
    return (labels[..., 1:] != _IGNORED).sum()


# Denominators of a mean, by name. Next labels: language models predict each label but the first.
_OVER: dict[str, Callable[[Tensor], Tensor]] = {"samples": _samples, "labels": _labels, "next labels": _next_labels}
# A sum: the denominator was given to the model, as Hugging Face's Trainer does.
_SUM = "the sum"


class ModelLoss:
    """The loss that a model returns for pieces: a mean over samples or labels, or a sum."""

    def __init__(self, over: str) -> None:
        self.over = over
        self.is_sum = over == _SUM

    @staticmethod
    def of(
        model: nn.Module, samples: Samples, device: torch.device, memory: int | None, instead: str = _INSTEAD
    ) -> ModelLoss:
        """Finds the denominator of the model's loss, from the losses of two samples, apart and together.

        `instead`: for the message, the remedy if the loss is no mean.

        Raises:
            ValueError: the model returns no loss, or one that is no such mean.
        """
        if len(samples) < 2:
            return ModelLoss("samples")  # The batch is one piece.
        if model not in _FOUND:
            _FOUND[model] = _found(model, samples, device, memory, instead)
        return ModelLoss(_FOUND[model])

    def weight(self, samples: int, labels: Any) -> Tensor | int:
        """D of a piece."""
        return samples if self.over not in _OVER or self.over == "samples" or labels is None else _OVER[self.over](labels)

    def countable(self, labels: Any) -> Any:
        """Returns the labels unchanged: the model has them among its inputs."""
        return labels

    def __call__(self, outputs: Any, labels: Any) -> Tensor:
        return loss_in(outputs)


def labels_of(inputs: Any) -> Tensor | None:
    """The labels among a model's inputs, or None."""
    labels = inputs.get("labels") if hasattr(inputs, "get") else None
    return labels if isinstance(labels, Tensor) else None


def loss_in(outputs: Any) -> Tensor:
    """The loss among a model's outputs. Raises ValueError if they have none."""
    loss = outputs.get("loss") if isinstance(outputs, dict) else getattr(outputs, "loss", None)
    if not isinstance(loss, Tensor):
        raise ValueError(
            f"the model returns a {type(outputs).__name__} without a loss: pass labels to the model, or a loss_fn of its "
            "outputs to memlab"
        )
    return loss


def _found(model: nn.Module, samples: Samples, device: torch.device, memory: int | None, instead: str) -> str:
    inputs = samples.piece(range(2), device)
    labels = labels_of(inputs)
    over = ["samples"]
    if labels is not None and not labels.is_floating_point():
        over = list(_OVER) if labels.dim() > 1 else ["samples", "labels"]
        inputs = {**inputs, "labels": _unlike(labels)}
    both = Samples(inputs)
    with evaluating(model):  # Without dropout, whose masks would differ.
        kinds = TrialForm.of(model, is_sharded=Ranks(model).are_in_step)
        for kind in kinds:
            try:
                name, losses = _mean_of(Trial(model, both, device, memory, kind), both, over)
                break
            except Exception as error:  # Some kernels do not support float64, for example.
                if kind is kinds[-1]:
                    raise
                make_room(error)
    if name is None:
        raise ValueError(
            f"the model's own loss is neither a mean over {', '.join(over)} nor a sum, or its gradients are not, as with a "
            f"loss that balances experts. Two samples have the loss {losses[0]:.6g}; each alone has {losses[1]:.6g} and "
            f"{losses[2]:.6g}. {instead}"
        )
    return name


def _mean_of(trial: Trial, both: Samples, over: list[str]) -> tuple[str | None, list[float]]:
    """The denominator for which the weighted losses and gradients of two single samples add up to those of both; and the
    losses."""

    def objective(outputs: Any, _rows: range) -> tuple[Tensor, list[Tensor]]:
        return loss_in(outputs), []

    rows = [range(2), range(1), range(1, 2)]
    whole, moved = trial.seen(rows[0], objective), trial.seen(rows[0], objective, moved=True)
    parts = [trial.seen(part, objective) for part in rows[1:]]
    losses = [float(one.tensors[0]) for one in [whole, *parts]]
    for name in [*over, _SUM]:
        weights = [1.0, 1.0, 1.0]
        if name != _SUM:
            weights = [float(_OVER[name](_labels_or_rows(both.piece(part, torch.device("cpu"))))) for part in rows]
        # The mean of no labels is NaN.
        counted = [(part, weight / max(weights[0], 1)) for part, weight in zip(parts, weights[1:], strict=True) if weight]
        if counted and not trial.are_apart(whole, moved, weighted_sum(counted)):
            return name, losses
    return None, losses


def _unlike(labels: Tensor) -> Tensor:
    """Labels of two samples where the second has half as many that count, so that the possible means differ."""
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
