"""Observers of each piece that is done, and of the strategy that a batch is computed by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

#: Called with the samples of a piece, after its backward, and the number of all samples of the batch.
Observer = Callable[[range, int], None]
#: Called with some samples of a batch and what the model has returned for them; again if they are computed again.
Keeper = Callable[[range, Any], None]


@dataclass
class Computation:
    """How a batch is computed."""

    #: As `memlab._batches.strategies` calls it; None: not known yet.
    way: str | None = None
    #: Pieces that are done, and their samples.
    pieces: int = 0
    samples: int = 0


def _ignore(rows: range, samples: int) -> None:
    pass


_OBSERVER: ContextVar[Observer] = ContextVar("memlab_batches_observer", default=_ignore)
_KEEPER: ContextVar[Keeper | None] = ContextVar("memlab_batches_keeper", default=None)
_COMPUTATION: ContextVar[Computation | None] = ContextVar("memlab_batches_computation", default=None)


def observer() -> Observer:
    """Who is told of the pieces of a batch that begins now. (Its backward may run in a thread of autograd's.)"""
    return _OBSERVER.get()


def keeper() -> Keeper | None:
    """Who wants the outputs of a batch that begins now, as far as they are together anywhere; None: nobody does."""
    return _KEEPER.get()


def note_strategy(way: str) -> None:
    """Notes the strategy of the batch that begins now."""
    computation = _COMPUTATION.get()
    if computation is not None:
        computation.way = way


@contextmanager
def observing(tell: Observer, computation: Computation | None = None, keep: Keeper | None = None) -> Iterator[None]:
    """Tells `tell` and `computation` of batches that begin in a block, and `keep` of their outputs.

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
