"""memlab: run models bigger than the GPU, and see where GPU memory goes.

    model = memlab.page(model)                      # weights are copied to the GPU while it computes
    model = memlab.chunk(model, "cuda", "6GiB")     # what fits stays on the GPU, the rest runs on the CPU or is paged
    model = memlab.load("weights.safetensors", model)
    print(model.memlab)                             # the plan: units, what stays, predicted and achieved time
    model = memlab.unpage(model)                    # the model as it was, on the CPU

    with memlab.annotate("forward"):                # a name for what is allocated here, beside lines and layers
        loss = model(batch)

The namespaces `memlab.paging`, `memlab.batches`, `memlab.inspection` and `memlab.recording` contain the same names.
`memlab.compat` contains the interfaces of older projects. The same package contains the ``memlab`` command
(``memlab run -- python train.py``). See the user guide.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memlab import allocator, batches, compat, inspection, paging, recording, training_warnings
    from memlab.accumulation import accumulate
    from memlab.activations import offload_activations
    from memlab.annotation import annotate
    from memlab.batch_search import find_batch
    from memlab.chunking import chunk
    from memlab.compat.courtesy import Courtesy
    from memlab.compat.cuda_history import CudaHistory, CudaMemorySnapShot, MemoryDifference
    from memlab.compat.iteration_profiler import memory_profiler
    from memlab.compat.line_profiler import (
        LineProfiler,
        clear_global_line_profiler,
        profile,
        profile_every,
        set_target_gpu,
    )
    from memlab.compat.network_inspection import InspectNetwork
    from memlab.compat.reporter import MemReporter
    from memlab.compat.reproducing import determinize, first_difference, is_equal_network, is_equal_with_error
    from memlab.config import Config, GiB, KiB, MiB, NotEnoughCPURam, NotEnoughGPURam
    from memlab.feeding import Feeder, SampleError
    from memlab.infinity_batch import InfinityBatch
    from memlab.inspection import CannotTravel, InspectionError, UnpicklableModelError, inspect
    from memlab.lightning_batches import big_batches_callback
    from memlab.loading import load, skeleton
    from memlab.paged_model import page, plan_of, unpage
    from memlab.plan import Plan
    from memlab.process_recording import start, stop
    from memlab.step_log import log
    from memlab.tracking import tracker
    from memlab.trainers import BigBatches, offload_callback
    from memlab.training_warnings import TrainingWarning
    from memlab.watching import watch

__version__ = "0.1.0"
__all__ = [
    "BigBatches",
    "CannotTravel",
    "Config",
    "Courtesy",
    "CudaHistory",
    "CudaMemorySnapShot",
    "Feeder",
    "GiB",
    "InfinityBatch",
    "InspectNetwork",
    "InspectionError",
    "KiB",
    "LineProfiler",
    "MemReporter",
    "MemoryDifference",
    "MiB",
    "NotEnoughCPURam",
    "NotEnoughGPURam",
    "Plan",
    "SampleError",
    "TrainingWarning",
    "UnpicklableModelError",
    "accumulate",
    "allocator",
    "annotate",
    "batches",
    "big_batches_callback",
    "chunk",
    "clear_global_line_profiler",
    "compat",
    "determinize",
    "find_batch",
    "first_difference",
    "holders",
    "inspect",
    "inspection",
    "is_equal_network",
    "is_equal_with_error",
    "load",
    "log",
    "memory_profiler",
    "offload_activations",
    "offload_callback",
    "page",
    "paging",
    "plan_of",
    "profile",
    "profile_every",
    "recording",
    "set_target_gpu",
    "skeleton",
    "start",
    "stop",
    "tracker",
    "training_warnings",
    "unpage",
    "watch",
]

# Modules are imported on first use: the command imports this file too, and must not wait two seconds for PyTorch. (`__all__`
# lacks the functions that IPython calls: they need IPython.)
_NAMES = {
    "accumulation": "accumulate",
    "activations": "offload_activations",
    "annotation": "annotate",
    "batch_search": "find_batch",
    "chunking": "chunk",
    "compat.courtesy": "Courtesy",
    "compat.cuda_history": "CudaHistory CudaMemorySnapShot MemoryDifference",
    "compat.iteration_profiler": "memory_profiler",
    "compat.line_profiler": "LineProfiler clear_global_line_profiler profile profile_every set_target_gpu",
    "compat.network_inspection": "InspectNetwork",
    "compat.reporter": "MemReporter",
    "compat.reproducing": "determinize first_difference is_equal_network is_equal_with_error",
    "config": "Config GiB KiB MiB NotEnoughCPURam NotEnoughGPURam",
    "feeding": "Feeder SampleError",
    "holding": "holders",
    "infinity_batch": "InfinityBatch",
    "inspection": "CannotTravel InspectionError UnpicklableModelError inspect",
    "lightning_batches": "big_batches_callback",
    "loading": "load skeleton",
    "magics": "load_ipython_extension unload_ipython_extension",
    "paged_model": "page plan_of unpage",
    "plan": "Plan",
    "process_recording": "start stop",
    "step_log": "log",
    "tracking": "tracker",
    "trainers": "BigBatches offload_callback",
    "training_warnings": "TrainingWarning",
    "watching": "watch",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

# Accessed as modules: `memlab.allocator.replay(…)`, `memlab.paging.page(…)`.
_NAMESPACES = {"allocator", "batches", "compat", "inspection", "paging", "recording", "training_warnings"}

# Minimum PyTorch version of modules that use its internals; the others work with 2.1.
_OLDEST_TORCH = {
    **dict.fromkeys(("chunking", "loading", "paged_model"), (2, 6)),
    **dict.fromkeys(("accumulation", "activations", "compat.courtesy", "infinity_batch", "inspection"), (2, 4)),
    **dict.fromkeys(("compat.iteration_profiler", "compat.network_inspection", "compat.reporter"), (2, 4)),
    **dict.fromkeys(("lightning_batches", "trainers"), (2, 4)),
}


def _refuse_old(name: str) -> None:
    """Raises an ImportError if a public name needs a newer version. The message names that version."""
    from importlib import metadata  # Imported here, since the command starts through this file.

    if sys.version_info < (3, 10):  # noqa: UP036 - the command starts from a source tree on older ones.
        raise ImportError(f"memlab.{name} needs CPython 3.10 or newer; this is {sys.version.split()[0]}")
    oldest = _OLDEST_TORCH.get(_MODULES[name])
    try:
        installed = metadata.version("torch")  # Read without importing PyTorch.
        version = tuple(map(int, installed.split(".")[:2]))
    except (metadata.PackageNotFoundError, ValueError):
        return
    if oldest is not None and version < oldest:
        needed = ".".join(map(str, oldest))
        raise ImportError(f"memlab.{name} needs PyTorch {needed} or newer; {installed} is installed")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in _NAMESPACES:
        return importlib.import_module(f"memlab.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'memlab' has no attribute {name!r}")
    _refuse_old(name)
    value = getattr(importlib.import_module(f"memlab.{_MODULES[name]}"), name)
    globals()[name] = value  # The next access does not call this function.
    return value
