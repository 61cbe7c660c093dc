"""``memlab.find_batch``: the largest batch that runs, found by trying."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

from memlab._batches.out_of_memory import is_out_of_memory, make_room
from memlab.config import NotEnoughGPURam

__all__ = ["find_batch"]


def find_batch(run: Callable[[int], Any], start: int | None = None, *, most: int | None = None) -> int:
    """The largest batch for which `run` does not run out of GPU memory.

    Tries sizes up or down from `start`, at growing distances, then between the last that ran and the first that did not. A
    start from `memlab.inspect` is usually right or close, so that two or three tries suffice. Each try is followed by
    freeing memory: the locals of failed calls, reference cycles, and the allocator's cache.

    Args:
        run: runs some whole steps with a given number of rows, optimizer included, on a model that may be changed. Its
            result is dropped. If it runs with some size, it must run with all smaller ones.
        start: the first size to try. None: 1.
        most: the largest size to try.

    Raises:
        NotEnoughGPURam: a batch of one row does not run.
        ValueError: `start` or `most` is below 1.
        Exception: `run` raises an error that is neither `torch.OutOfMemoryError` nor caused by it.

    >>> import memlab, torch
    >>> tried = []
    >>> def run(batch):
    ...     tried.append(batch)
    ...     if batch > 21:
    ...         raise torch.OutOfMemoryError("CUDA out of memory")
    >>> memlab.find_batch(run, start=20), tried
    (21, [20, 21, 23, 22])
    """
    for name, size in (("start", start), ("most", most)):
        if size is not None and size < 1:
            raise ValueError(f"{name}={size}: must be 1 or more")
    first = min(start or 1, most or start or 1)
    runs = _runs(run, first)
    fits, too_large = (first, None) if runs else (0, first)
    distance = 1
    while runs and (most is None or fits < most):  # Upwards, until a size does not run.
        size = fits + distance if most is None else min(fits + distance, most)
        if not _runs(run, size):
            too_large = size
            break
        fits, distance = size, distance * 2
    while not runs and first > 1:  # Downwards, until a size runs.
        size = max(first - distance, 1)
        if _runs(run, size):
            fits = size
            break
        too_large = size
        if size == 1:
            break
        distance *= 2
    if fits == 0:
        raise NotEnoughGPURam("not even a batch of 1 fits on the GPU")
    while too_large is not None and too_large - fits > 1:
        middle = (fits + too_large) // 2
        if _runs(run, middle):
            fits = middle
        else:
            too_large = middle
    return fits


def _runs(run: Callable[[int], Any], size: int) -> bool:
    try:
        run(size)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        make_room(error)
        return False
    else:
        return True
    finally:
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
