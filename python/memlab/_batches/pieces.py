"""The pieces of a batch one after the other, and again in halves if one runs out of memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from memlab._batches.gradients import Marks
from memlab._batches.out_of_memory import drop_frames, is_out_of_memory
from memlab._batches.sizing import Sizing

# Computes a piece and adds to gradients: to those of these parameters only, if any are named.
Work = Callable[[range, Sequence[Tensor] | None], None]


def run_pieces(count: int, sizing: Sizing, parameters: Sequence[Tensor], work: Work, done: Callable[[], None]) -> None:
    """Runs `work` for all of `count` samples, and `done` after each piece.

    A piece that runs out of memory is given up and done again in halves. What its backward has added until then stays: the
    halves add to the gradients of the other parameters.

    Raises:
        torch.OutOfMemoryError: a single sample needs more memory than there is.
    """
    begin = 0
    again: deque[tuple[range, list[Tensor]]] = deque()
    while again or begin < count:
        wanted: Sequence[Tensor] | None = None
        if again:
            rows, wanted = again.popleft()
        else:
            rows = range(begin, begin + sizing.size(count - begin))
            begin = rows.stop
        marks = Marks(parameters)
        failed: Exception | None = None
        try:
            with sizing.measured(len(rows)):
                work(rows, wanted)
        except Exception as error:
            if not is_out_of_memory(error) or len(rows) == 1:
                raise
            failed = error
        if failed is not None:
            drop_frames(failed)
            untouched = marks.untouched()
            left = untouched if wanted is None else [one for one in untouched if any(one is other for other in wanted)]
            _free_cache()
            sizing.failed(len(rows))
            middle = rows.start + len(rows) // 2
            again.extendleft([(range(middle, rows.stop), left), (range(rows.start, middle), left)])
        done()


def _free_cache() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
