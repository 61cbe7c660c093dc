"""What an evaluation says of all samples: means of losses and other figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from memlab._batches.criteria import Mean


def loss_and_weight(
    criterion: Callable[..., Tensor], outputs: Any, targets: Any, samples: int
) -> tuple[Tensor, Tensor | int | None]:
    """The loss of a batch, and its weight in the mean of all; None: it is a sum."""
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
        """One batch's. It is not waited for."""
        self._figures.setdefault(name, []).append((figure, weight))

    def result(self) -> dict[str, float]:
        """The mean of each, or its sum if it was added with no weights.

        Raises:
            ValueError: nothing was added.
        """
        if not self._figures:
            raise ValueError("nothing was evaluated: the dataloader gave no batch, or there is neither criterion nor metric")
        return {name: _mean(rows) for name, rows in self._figures.items()}


def _mean(rows: list[tuple[Any, Any]]) -> float:
    if any(weight is None for _, weight in rows):
        return sum(float(figure) for figure, _ in rows)
    weighed = [(float(figure), float(weight)) for figure, weight in rows]
    total = sum(weight for _, weight in weighed)
    return sum(figure * weight for figure, weight in weighed) / total if total else float("nan")
