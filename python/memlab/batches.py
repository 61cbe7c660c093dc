"""Batches larger than the GPU, and their input: `accumulate`, `InfinityBatch`, `find_batch`, `Feeder`.

>>> import memlab
>>> memlab.batches.InfinityBatch is memlab.InfinityBatch
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlab._namespace import lazy_names

if TYPE_CHECKING:
    from memlab import (
        BigBatches,
        Config,
        Feeder,
        GiB,
        InfinityBatch,
        KiB,
        MiB,
        NotEnoughCPURam,
        NotEnoughGPURam,
        SampleError,
        TrainingWarning,
        accumulate,
        big_batches_callback,
        find_batch,
        offload_activations,
        offload_callback,
        training_warnings,
    )

__all__ = [
    "BigBatches",
    "Config",
    "Feeder",
    "GiB",
    "InfinityBatch",
    "KiB",
    "MiB",
    "NotEnoughCPURam",
    "NotEnoughGPURam",
    "SampleError",
    "TrainingWarning",
    "accumulate",
    "big_batches_callback",
    "find_batch",
    "offload_activations",
    "offload_callback",
    "training_warnings",
]

__getattr__, __dir__ = lazy_names(__name__, __all__)
