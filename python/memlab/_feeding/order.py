"""The order of the samples in an epoch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def epoch_order(samples: int, seed: int, epoch: int, shuffle: bool, rank: int = 0, world_size: int = 1) -> NDArray[np.int64]:
    """The numbers of one rank's samples in one epoch.

    A shuffled order depends only on `seed` and `epoch`: NumPy guarantees that `RandomState` never changes. If the shares of
    the ranks would be unequal, the first samples of the order are repeated at its end, so that all ranks take equally many
    steps.

    >>> epoch_order(5, 0, 0, shuffle=False)
    array([0, 1, 2, 3, 4])
    >>> [epoch_order(5, 0, 0, shuffle=False, rank=rank, world_size=2).tolist() for rank in (0, 1)]
    [[0, 2, 4], [1, 3, 0]]
    """
    order: NDArray[np.int64] = np.arange(samples, dtype=np.int64)
    if shuffle:
        state = np.random.RandomState(np.random.MT19937(np.random.SeedSequence([seed, epoch])))
        order = state.permutation(samples).astype(np.int64, copy=False)
    if world_size > 1:
        order = np.resize(order, -(-samples // world_size) * world_size)[rank::world_size]
    return order
