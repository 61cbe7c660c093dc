"""Evaluation over all samples: means of losses and other figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor

from memlab._batches.criteria import Mean
from memlab._batches.nested import Samples, beside
from memlab._batches.tracked_loader import divided, single


def evaluated(
    batches: Iterable[Any],
    outputs_of: Callable[[Any], Any],
    criterion: Callable[..., Tensor] | None,
    metrics: Mapping[str, Callable[[Any, Any], Any]],
) -> dict[str, float]:
    """The loss, if a criterion is given, and the metrics of all samples, by name. Raises ValueError if nothing was
    evaluated."""
    if "loss" in metrics:
        raise ValueError('a metric cannot be called "loss": the criterion has this name')
    means = WeightedMeans()
    for batch in single(batches):
        inputs, targets = divided(batch)
        outputs = outputs_of(inputs)
        targets, count = beside(outputs, targets), len(Samples(inputs))
        if criterion is not None:
            loss, weight = loss_and_weight(criterion, outputs, targets, count)
            means.add("loss", loss, weight)
        for name, metric in metrics.items():
            means.add(name, metric(outputs, targets), count)
    return means.result()


def loss_and_weight(
    criterion: Callable[..., Tensor], outputs: Any, targets: Any, samples: int
) -> tuple[Tensor, Tensor | int | None]:
    """The loss of a batch, and its weight in the mean of all batches; None: the loss is a sum."""
    mean = Mean.of(criterion)
    if mean is None:
        return criterion(outputs, targets), samples
    loss = mean(outputs, mean.countable(targets))
    return loss, None if mean.is_sum else mean.weight(samples, targets)


class WeightedMeans:
    """Means and sums of figures, by name.

    >>> means = WeightedMeans()
    >>> means.add("loss", 2.0, 3)
    >>> means.add("loss", 6.0, 1)
    >>> means.result()
    {'loss': 3.0}
    """

    def __init__(self) -> None:
        self._figures: dict[str, list[tuple[Any, Any]]] = {}

    def add(self, name: str, figure: Any, weight: Any) -> None:
        """Adds the figure of one batch, without waiting for it."""
        self._figures.setdefault(name, []).append((figure, weight))

    def result(self) -> dict[str, float]:
        """The mean of each figure, or its sum if it was added without weights.

        Raises:
            ValueError: nothing was added.
        """
        if not self._figures:
            raise ValueError("nothing was evaluated: the dataloader was empty, or neither criterion nor metric is set")
        return {name: _mean(rows) for name, rows in self._figures.items()}


def _mean(rows: list[tuple[Any, Any]]) -> float:
    if any(weight is None for _, weight in rows):
        return sum(float(figure) for figure, _ in rows)
    weighed = [(float(figure), float(weight)) for figure, weight in rows]
    total = sum(weight for _, weight in weighed)
    return sum(figure * weight for figure, weight in weighed) / total if total else float("nan")
