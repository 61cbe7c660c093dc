"""Values that the pieces of a batch log, combined and logged once for the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Reductions of the pieces' values, by the name of Lightning's `reduce_fx`. Other values are averaged.
_TOGETHER: dict[str, Callable[[Any, Any], Any]] = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}


class LoggedValues:
    """Values by name, each with the weight of its piece.

    >>> logged = LoggedValues()
    >>> for weight, loss in ((3, 2.0), (1, 6.0)):
    ...     logged.begin(weight)
    ...     logged.log("loss", loss, prog_bar=True)
    ...     logged.keep()
    >>> logged.log_to(lambda name, value, **options: print(name, value, options))
    loss tensor(3.) {'prog_bar': True}
    """

    def __init__(self) -> None:
        self._pieces: list[tuple[Any, dict[str, tuple[Any, dict[str, Any]]]]] = []
        self._piece: tuple[Any, dict[str, tuple[Any, dict[str, Any]]]] = (0, {})

    def begin(self, weight: Any) -> None:
        """Begins a piece, which may not be completed."""
        self._piece = (weight, {})

    def log(self, name: str, value: Any, *given: Any, **options: Any) -> None:
        """Replaces Lightning's `self.log`."""
        if given:
            raise TypeError(f"self.log({name!r}, …): pass all arguments after name and value as keywords")
        self._piece[1][name] = (value, options)

    def keep(self) -> None:
        """Keeps the values of the piece, which is complete."""
        self._pieces.append(self._piece)

    def log_to(self, log: Callable[..., None]) -> None:
        """Logs the values of the batch."""
        names = dict.fromkeys(name for _, values in self._pieces for name in values)
        for name in names:
            rows = [(weight, *values[name]) for weight, values in self._pieces if name in values]
            options = dict(rows[-1][2])
            if options.get("batch_size") is not None:
                options["batch_size"] = sum(one["batch_size"] for _, _, one in rows)
            log(name, _of_batch([(weight, value) for weight, value, _ in rows], options.get("reduce_fx")), **options)


def _of_batch(rows: list[tuple[Any, Any]], reduce_fx: Any) -> Any:
    if not isinstance(rows[0][1], (int, float, Tensor)):
        return rows[-1][1]  # A metric object, which has counted all pieces itself.
    values = [torch.as_tensor(value).detach() for _, value in rows]
    together = _TOGETHER.get(reduce_fx if isinstance(reduce_fx, str) else getattr(reduce_fx, "__name__", ""))
    if together is not None:
        total = values[0]
        for value in values[1:]:
            total = together(total, value)
        return total
    if len(values) == 1:
        return values[0]
    like = next((value for value in values if value.is_floating_point()), torch.ones(()))
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    weights = [torch.as_tensor(weight).to(value.device, dtype) for (weight, _), value in zip(rows, values, strict=True)]
    # The mean of an empty piece is NaN; its weight is 0.
    parts = [(value.to(dtype) * weight).where(weight != 0, 0) for value, weight in zip(values, weights, strict=True)]
    return torch.stack(parts).sum() / torch.stack(weights).sum()
