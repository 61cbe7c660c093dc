"""Callbacks of a training: objects with a method for each event that they handle."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, SupportsIndex

EVENTS = ("on_micro_batch", "on_outputs", "on_loss", "on_step", "on_epoch")


class Callbacks(list[Any]):
    """A list of callbacks. Their exceptions reach the caller.

    >>> class Printer:
    ...     def on_step(self, training):
    ...         print("a step of", training)
    >>> Callbacks([Printer()]).tell("on_step", "the training")
    a step of the training

    Raises:
        TypeError: a callback has none of the methods, or a method whose name begins with ``on_`` and resembles one of them.
    """

    def __init__(self, callbacks: Iterable[Any]) -> None:
        super().__init__(map(_checked, callbacks))

    def append(self, callback: Any) -> None:
        """Appends a callback, after checking it as every way of adding one does."""
        super().append(_checked(callback))

    def insert(self, place: SupportsIndex, callback: Any) -> None:
        super().insert(place, _checked(callback))

    def extend(self, callbacks: Iterable[Any]) -> None:
        super().extend([_checked(callback) for callback in callbacks])

    def __iadd__(self, callbacks: Iterable[Any]) -> Callbacks:  # type: ignore[misc, override]
        self.extend(callbacks)
        return self

    def __setitem__(self, place: Any, callback: Any) -> None:
        is_one = not isinstance(place, slice)
        super().__setitem__(place, _checked(callback) if is_one else [_checked(one) for one in callback])

    def want(self, event: str) -> bool:
        """True if a callback handles the event. Preparing an event's arguments may cost something."""
        return any(hasattr(callback, event) for callback in self)

    def tell(self, event: str, *arguments: Any) -> None:
        """Calls the methods for an event, in the order of the list."""
        for callback in tuple(self):
            method = getattr(callback, event, None)
            if method is not None:
                method(*arguments)


def _checked(callback: Any) -> Any:
    kind = type(callback).__name__
    for name in dir(callback):
        if name.startswith("on_") and name not in EVENTS and (near := difflib.get_close_matches(name, EVENTS, 1, 0.8)):
            raise TypeError(f"the callback {kind} has {name}: did you mean {near[0]}?")
    if not any(hasattr(callback, event) for event in EVENTS):
        raise TypeError(f"the callback {kind} has no method for any event: {', '.join(EVENTS)}")
    return callback
