"""Random numbers that all samples of a batch share, such as one dropout mask for all: pieces would draw different ones.

A forward of a few samples draws as many such numbers as a forward of one. They matter if the outputs depend on them: Hugging
Face's OPT, for instance, draws a number for each layer, and drops none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from memlab._batches.state import RandomState, same_values
from memlab._batches.trial import Trial
from memlab._paging.torch_private import RECURRENT_DROPOUT_STATE, OperationMode

# An operation, and the shape of the drawn tensor.
_Draw = tuple[str, tuple[int, ...]]
# The smallest and the largest drawn number: a layer that is dropped, and one that is not.
_EXTREMES = (0.0, 1 - 2.0**-20)
# Operations that draw seeds and states of other generators. cuDNN's recurrent layers, for example, draw for each sample.
_SEEDS = (torch.ops.aten.random_.default, RECURRENT_DROPOUT_STATE)
# Number of seeds of Python's and NumPy's random numbers to try.
_SEQUENCES = 8


def shared_draws(trial: Trial, rows: range, one: range, device: torch.device) -> str | None:
    """The random numbers that all samples share and that the outputs depend on, for messages; None: none.

    Args:
        trial: the model, in training.
        rows: samples that begin with `one`.
        one: fewer samples.
        device: the device that draws random numbers, beside the CPU.
    """
    before = RandomState({device})
    of_all, of_one = _Draws(), _Draws()
    first = trial.with_draws(rows, of_all)
    host = RandomState(()).host
    if not of_all.counts and host == before.host:
        return None
    before.restore()
    trial.with_draws(one, of_one)
    of_host = before.host != host == RandomState(()).host

    def is_other(draws: _Draws, seed: int | None = None) -> bool:
        before.restore()
        if seed is not None:
            RandomState.seed_host(seed)
        return not _are_same(first, trial.with_draws(rows, draws), is_exact=is_exact)

    # Kernels that add in any order round differently each time.
    is_exact = True
    if (shared := _shared(of_all.counts, of_one.counts, len(rows), len(one))) or of_host:
        is_exact = not is_other(_Draws())
    for draw in shared:
        if any(is_other(_Draws(draw, extreme)) for extreme in _EXTREMES):
            name, shape = draw
            return f"{name.split('.')[1].rstrip('_')} of shape {shape}"
    if of_host and any(is_other(_Draws(), seed) for seed in range(_SEQUENCES)):
        return "Python's or NumPy's random numbers"
    return None


def _shared(of_all: Counter[_Draw], of_one: Counter[_Draw], samples: int, fewer: int) -> list[_Draw]:
    """Draws that occur as often for all samples as for fewer of them."""
    found = []
    for (name, shape), count in of_all.items():
        alone = of_one[name, shape]
        if shape and shape[0] == fewer:
            # A row for each of the fewer samples has the same shape.
            alone -= of_all[name, (samples, *shape[1:])]
        # (A loop over samples draws more often.)
        if alone * samples > count * fewer:
            found.append((name, shape))
    return found


def _are_same(some: Sequence[Tensor], others: Iterable[Tensor], *, is_exact: bool) -> bool:
    return all(same_values(one, other, is_exact=is_exact) for one, other in zip(some, others, strict=True))


class _Draws(OperationMode):
    """Counts the draws, and replaces the numbers of one of them."""

    def __init__(self, other: _Draw | None = None, share: float = 0.0) -> None:
        super().__init__()
        self._other, self._share = other, share
        self.counts: Counter[_Draw] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in function.tags and function not in _SEEDS:
            drawn = [one for one in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(one, Tensor)]
            draw = (str(function), tuple(drawn[0].shape) if drawn else ())
            self.counts[draw] += 1
            if draw == self._other:
                for one in drawn:
                    one.fill_(self._share if one.is_floating_point() else self._share > 0)
        return result
