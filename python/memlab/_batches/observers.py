"""Observers of each completed piece, and of the strategy of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

#: Called after the backward of a piece, with its samples and the number of all samples of the batch.
Observer = Callable[[range, int], None]
#: Called with some samples of a batch and their outputs; again if they are computed again.
Keeper = Callable[[range, Any], None]


@dataclass
class Computation:
    """The strategy of a batch and its progress."""

    #: The strategy's name in `memlab._batches.strategies`; None: not known yet.
    way: str | None = None
    #: Completed pieces, and their samples.
    pieces: int = 0
    samples: int = 0


def _ignore(rows: range, samples: int) -> None:
    pass


_OBSERVER: ContextVar[Observer] = ContextVar("memlab_batches_observer", default=_ignore)
_KEEPER: ContextVar[Keeper | None] = ContextVar("memlab_batches_keeper", default=None)
_COMPUTATION: ContextVar[Computation | None] = ContextVar("memlab_batches_computation", default=None)


def observer() -> Observer:
    """The observer of a batch that begins now. (Its backward may run in a thread of autograd.)"""
    return _OBSERVER.get()


def keeper() -> Keeper | None:
    """The receiver of the outputs of a batch that begins now, if the strategy joins them anywhere; None: no receiver."""
    return _KEEPER.get()


def note_strategy(way: str) -> None:
    """Records the strategy of the batch that begins now."""
    computation = _COMPUTATION.get()
    if computation is not None:
        computation.way = way


@contextmanager
def observing(tell: Observer, computation: Computation | None = None, keep: Keeper | None = None) -> Iterator[None]:
    """Reports batches that begin in a block to `tell` and `computation`, and their outputs to `keep`.

    >>> computation = Computation()
    >>> with observing(lambda rows, samples: print(rows, "of", samples), computation):
    ...     note_strategy("replay")
    ...     observer()(range(4, 8), 20)
    range(4, 8) of 20
    >>> computation
    Computation(way='replay', pieces=1, samples=4)
    """

    def told(rows: range, samples: int) -> None:
        if computation is not None:
            computation.pieces += 1
            computation.samples += len(rows)
        tell(rows, samples)

    token, computing, keeping = _OBSERVER.set(told), _COMPUTATION.set(computation), _KEEPER.set(keep)
    try:
        yield
    finally:
        _OBSERVER.reset(token)
        _COMPUTATION.reset(computing)
        _KEEPER.reset(keeping)
