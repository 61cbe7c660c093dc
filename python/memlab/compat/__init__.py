"""The interfaces of older projects: pytorch_memlab, pytorch_mem_profiler, infinitybatch and InspectNetwork.

>>> import memlab
>>> memlab.compat.LineProfiler is memlab.LineProfiler
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlab._namespace import lazy_names

if TYPE_CHECKING:
    from memlab import (
        Courtesy,
        CudaHistory,
        CudaMemorySnapShot,
        InspectNetwork,
        LineProfiler,
        MemoryDifference,
        MemReporter,
        clear_global_line_profiler,
        determinize,
        first_difference,
        is_equal_network,
        is_equal_with_error,
        memory_profiler,
        profile,
        profile_every,
        set_target_gpu,
    )

__all__ = [
    "Courtesy",
    "CudaHistory",
    "CudaMemorySnapShot",
    "InspectNetwork",
    "LineProfiler",
    "MemReporter",
    "MemoryDifference",
    "clear_global_line_profiler",
    "determinize",
    "first_difference",
    "is_equal_network",
    "is_equal_with_error",
    "memory_profiler",
    "profile",
    "profile_every",
    "set_target_gpu",
]

__getattr__, __dir__ = lazy_names(__name__, __all__)
