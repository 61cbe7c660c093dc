"""Errors that say that the GPU has no memory left, and what they hold."""

from __future__ import annotations

import traceback

import torch

# What cuBLAS, cuDNN, cuSOLVER, cuFFT and the runtime say that found no memory of their own, as when a thread needs a handle.
_LIBRARIES = ("_STATUS_ALLOC_FAILED", "CUFFT_ALLOC_FAILED", "CUDA error: out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether PyTorch or a library of CUDA's ran out of memory, or that has caused the error."""
    # `torch.OutOfMemoryError` since 2.5; this is the same class in all versions.
    return any(isinstance(one, torch.cuda.OutOfMemoryError) or _is_of_a_library(one) for one in _chain(error))


def make_room(error: BaseException) -> None:
    """Frees what the frames of the failed call hold, also if something keeps the error, and what PyTorch caches, which
    libraries cannot use."""
    for one in _chain(error):
        traceback.clear_frames(one.__traceback__)
        one.__traceback__ = None
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _is_of_a_library(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _LIBRARIES)


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
