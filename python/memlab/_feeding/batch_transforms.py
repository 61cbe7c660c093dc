"""Transforms of a batch before the loop gets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Apply = Callable[[Any], Any]


class BatchTransforms:
    """Converts types on the device, calls the user's function for each side, and then the function that joins both."""

    def __init__(
        self,
        applies: tuple[Apply | None, Apply | None],
        types: tuple[Any, Any],
        make_batch: Callable[[Any, Any], Any] | None,
    ) -> None:
        self._sides = tuple(zip(applies, types, strict=True))
        self._make_batch = make_batch

    def apply(self, pair: tuple[Any, Any]) -> Any:
        done = []
        for side, (apply, dtype) in zip(pair, self._sides, strict=True):
            converted = side if dtype is None else side.to(dtype)
            done.append(converted if apply is None else apply(converted))
        return tuple(done) if self._make_batch is None else self._make_batch(*done)
