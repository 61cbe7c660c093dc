"""Errors that say that the GPU has no memory left, and what they hold."""

from __future__ import annotations

import traceback

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether PyTorch ran out of memory, or that has caused the error."""
    # `torch.OutOfMemoryError` since 2.5; this is the same class in all versions.
    return any(isinstance(one, torch.cuda.OutOfMemoryError) for one in _chain(error))


def drop_frames(error: BaseException) -> None:
    """Frees what the frames of the failed call hold, also if something keeps the error."""
    for one in _chain(error):
        traceback.clear_frames(one.__traceback__)
        one.__traceback__ = None


def _chain(error: BaseException) -> list[BaseException]:
    """The error, and those that it was raised from or while handling."""
    chain: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is not None and one not in chain:
            chain.append(one)
            left += [one.__cause__, one.__context__]
    return chain
