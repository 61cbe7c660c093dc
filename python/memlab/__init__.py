"""memlab: run models bigger than the GPU, and see where GPU memory goes.

    model = memlab.page(model)                      # weights are copied to the GPU while it computes
    model = memlab.chunk(model, "cuda", "6GiB")     # what fits stays on the GPU, the rest runs on the CPU or is paged
    model = memlab.load("weights.safetensors", model)
    print(model.memlab)                             # the plan: units, what stays, predicted and achieved time
    model = memlab.unpage(model)                    # the model as it was, on the CPU

    with memlab.annotate("forward"):                # a name for what is allocated here, beside lines and layers
        loss = model(batch)

The ``memlab`` command (``memlab run -- python train.py``) is in the same package. See the user guide.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memlab import allocator, training_warnings
    from memlab.accumulation import accumulate
    from memlab.activations import offload_activations
    from memlab.annotation import annotate
    from memlab.batch_search import find_batch
    from memlab.chunking import chunk
    from memlab.config import Config, GiB, KiB, MiB, NotEnoughCPURam, NotEnoughGPURam
    from memlab.courtesy import Courtesy
    from memlab.cuda_history import CudaHistory, CudaMemorySnapShot, MemoryDifference
    from memlab.feeding import Feeder, SampleError
    from memlab.infinity_batch import InfinityBatch
    from memlab.inspection import InspectionError, UnpicklableModelError, inspect
    from memlab.iteration_profiler import memory_profiler
    from memlab.lightning_batches import big_batches_callback
    from memlab.line_profiler import (
        LineProfiler,
        clear_global_line_profiler,
        profile,
        profile_every,
        set_target_gpu,
    )
    from memlab.loading import load, skeleton
    from memlab.network_inspection import InspectNetwork
    from memlab.paging import page, plan_of, unpage
    from memlab.plan import Plan
    from memlab.recording import start, stop
    from memlab.reporter import MemReporter
    from memlab.reproducing import determinize, first_difference, is_equal_network, is_equal_with_error
    from memlab.step_log import log
    from memlab.tracking import tracker
    from memlab.trainers import BigBatches, offload_callback
    from memlab.training_warnings import TrainingWarning
    from memlab.watching import watch

__version__ = "0.1.0"
__all__ = [
    "BigBatches",
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
    "big_batches_callback",
    "chunk",
    "clear_global_line_profiler",
    "determinize",
    "find_batch",
    "first_difference",
    "inspect",
    "is_equal_network",
    "is_equal_with_error",
    "load",
    "log",
    "memory_profiler",
    "offload_activations",
    "offload_callback",
    "page",
    "plan_of",
    "profile",
    "profile_every",
    "set_target_gpu",
    "skeleton",
    "start",
    "stop",
    "tracker",
    "training_warnings",
    "unpage",
    "watch",
]

# The command imports this file too, and must not wait two seconds for PyTorch: modules are imported on first use. (What
# IPython calls is not in `__all__`: it needs IPython.)
_MODULES = {
    "BigBatches": "trainers",
    "UnpicklableModelError": "inspection",
    "Config": "config",
    "Courtesy": "courtesy",
    "CudaHistory": "cuda_history",
    "CudaMemorySnapShot": "cuda_history",
    "Feeder": "feeding",
    "GiB": "config",
    "InfinityBatch": "infinity_batch",
    "InspectNetwork": "network_inspection",
    "InspectionError": "inspection",
    "KiB": "config",
    "LineProfiler": "line_profiler",
    "MemReporter": "reporter",
    "MemoryDifference": "cuda_history",
    "MiB": "config",
    "NotEnoughCPURam": "config",
    "NotEnoughGPURam": "config",
    "Plan": "plan",
    "SampleError": "feeding",
    "TrainingWarning": "training_warnings",
    "accumulate": "accumulation",
    "allocator": "allocator",
    "annotate": "annotation",
    "big_batches_callback": "lightning_batches",
    "chunk": "chunking",
    "clear_global_line_profiler": "line_profiler",
    "determinize": "reproducing",
    "find_batch": "batch_search",
    "first_difference": "reproducing",
    "inspect": "inspection",
    "is_equal_network": "reproducing",
    "is_equal_with_error": "reproducing",
    "load": "loading",
    "load_ipython_extension": "magics",
    "log": "step_log",
    "memory_profiler": "iteration_profiler",
    "offload_activations": "activations",
    "offload_callback": "trainers",
    "page": "paging",
    "plan_of": "paging",
    "profile": "line_profiler",
    "profile_every": "line_profiler",
    "set_target_gpu": "line_profiler",
    "skeleton": "loading",
    "start": "recording",
    "stop": "recording",
    "tracker": "tracking",
    "training_warnings": "training_warnings",
    "unload_ipython_extension": "magics",
    "unpage": "paging",
    "watch": "watching",
}

# Used as modules: `memlab.allocator.replay(…)`.
_WHOLE = {"allocator", "training_warnings"}


# The oldest PyTorch of modules that use its internals; the others work with 2.1.
_OLDEST_TORCH = {
    **dict.fromkeys(("chunking", "loading", "paging"), (2, 6)),
    **dict.fromkeys(("accumulation", "activations", "courtesy", "infinity_batch", "inspection"), (2, 4)),
    **dict.fromkeys(("iteration_profiler", "lightning_batches", "network_inspection", "reporter", "trainers"), (2, 4)),
}


def _refuse_old(name: str) -> None:
    """Raises an ImportError that names the version which a public name needs."""
    from importlib import metadata  # Not for the command, which starts through this file.

    if sys.version_info < (3, 10):  # noqa: UP036 - the command starts from a source tree on older ones.
        raise ImportError(f"memlab.{name} needs CPython 3.10 or newer, and this is {sys.version.split()[0]}")
    oldest = _OLDEST_TORCH.get(_MODULES[name])
    try:
        installed = metadata.version("torch")  # PyTorch itself is not imported yet.
        version = tuple(map(int, installed.split(".")[:2]))
    except (metadata.PackageNotFoundError, ValueError):
        return
    if oldest is not None and version < oldest:
        needed = ".".join(map(str, oldest))
        raise ImportError(f"memlab.{name} needs PyTorch {needed} or newer, and {installed} is installed")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'memlab' has no attribute {name!r}")
    _refuse_old(name)
    module = importlib.import_module(f"memlab.{_MODULES[name]}")
    value = module if name in _WHOLE else getattr(module, name)
    globals()[name] = value  # The next use costs no call.
    return value
