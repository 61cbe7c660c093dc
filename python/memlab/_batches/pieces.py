"""Runs the pieces of a batch one after the other, and again in halves if one runs out of memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from memlab._batches.gradients import Marks
from memlab._batches.out_of_memory import is_out_of_memory, make_room
from memlab._batches.sizing import Sizing


@dataclass(frozen=True)
class Piece:
    """Some samples of a batch."""

    rows: range
    #: The parameters whose gradients it adds to; None: all.
    wanted: Sequence[Tensor] | None = None
    #: True if no piece follows, even if this one runs out of memory: then it is repeated.
    is_last: bool = False
    #: The samples that follow, if they are decided.
    following: range | None = None


# Computes a piece and adds to the gradients.
Work = Callable[[Piece], None]


def run_pieces(
    count: int,
    sizing: Sizing,
    parameters: Sequence[Tensor],
    work: Work,
    done: Callable[[range, bool], None],
    *,
    others_wait: bool = False,
    all_wait: bool = False,
) -> None:
    """Runs `work` for all of `count` samples. Calls `done` after each piece, with True unless it ran out of memory.

    A piece that runs out of memory is given up and repeated in halves. The gradients that its backward has added until then
    stay: the halves add to the gradients of the other parameters. A piece in which other ranks wait too is not repeated: the
    last piece if `others_wait`, all of them if `all_wait`.

    Raises:
        torch.OutOfMemoryError: a single sample does not fit.
    """
    begin = 0
    again: deque[tuple[range, list[Tensor]]] = deque()
    following: range | None = None
    while again or begin < count:
        wanted: Sequence[Tensor] | None = None
        if again:
            rows, wanted = again.popleft()
        else:
            rows = following or range(begin, begin + sizing.size(count - begin))
            begin = rows.stop
        is_last = not again and begin == count
        following = again[0][0] if again else _decided(begin, count, sizing)
        marks = Marks(parameters)
        failed: Exception | None = None
        try:
            with sizing.measured(len(rows)):
                work(Piece(rows, wanted, is_last, following))
        except Exception as error:
            if not is_out_of_memory(error) or len(rows) == 1 or (is_last and others_wait) or all_wait:
                raise
            failed = error
        if failed is not None:
            make_room(failed)
            untouched = marks.untouched()
            left = untouched if wanted is None else [one for one in untouched if any(one is other for other in wanted)]
            sizing.failed(len(rows))
            middle = rows.start + len(rows) // 2
            again.extendleft([(range(middle, rows.stop), left), (range(rows.start, middle), left)])
        done(rows, failed is None)


def _decided(begin: int, count: int, sizing: Sizing) -> range | None:
    """The next piece, decided before the current one runs: if samples are left, and pieces no longer grow."""
    if begin == count:
        return None
    size = sizing.size(count - begin)
    return range(begin, begin + size) if sizing.is_known(size) else None
