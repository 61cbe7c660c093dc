"""Who is told of each piece that is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: Called with the samples of a piece, after its backward, and the number of all samples of the batch.
Observer = Callable[[range, int], None]


def _ignore(rows: range, samples: int) -> None:
    pass


_OBSERVER: ContextVar[Observer] = ContextVar("memlab_batches_observer", default=_ignore)


def observer() -> Observer:
    """Who is told of the pieces of a batch that begins now. (Its backward may run in a thread of autograd's.)"""
    return _OBSERVER.get()


@contextmanager
def observing(tell: Observer) -> Iterator[None]:
    """Tells it of the pieces of batches that begin in a block.

    >>> with observing(lambda rows, samples: print(rows, "of", samples)):
    ...     observer()(range(4, 8), 20)
    range(4, 8) of 20
    """
    token = _OBSERVER.set(tell)
    try:
        yield
    finally:
        _OBSERVER.reset(token)
