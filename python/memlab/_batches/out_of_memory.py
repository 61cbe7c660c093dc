"""Out-of-memory errors of the GPU, and the memory that they keep alive."""

from __future__ import annotations

import traceback

import torch

# Error texts of cuBLAS, cuDNN, cuSOLVER, cuFFT and the runtime for failed allocations, for example of a thread's handle.
_LIBRARIES = ("_STATUS_ALLOC_FAILED", "CUFFT_ALLOC_FAILED", "CUDA error: out of memory")


def is_out_of_memory(error: BaseException) -> bool:
    """True if PyTorch or a CUDA library ran out of memory, or the error was caused by that."""
    # Named `torch.OutOfMemoryError` since 2.5; this name refers to the same class in all versions.
    return any(isinstance(one, torch.cuda.OutOfMemoryError) or _is_of_a_library(one) for one in _chain(error))


def make_room(error: BaseException) -> None:
    """Frees memory after a failed call: the locals of its frames, even if the error is kept, and PyTorch's cache, which
    libraries cannot use."""
    for one in _chain(error):
        traceback.clear_frames(one.__traceback__)
        one.__traceback__ = None
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _is_of_a_library(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _LIBRARIES)


def _chain(error: BaseException) -> list[BaseException]:
    """The error, and the errors that it was raised from or while handling."""
    chain: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is not None and one not in chain:
            chain.append(one)
            left += [one.__cause__, one.__context__]
    return chain
