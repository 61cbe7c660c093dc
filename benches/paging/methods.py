"""The compared methods. Each takes a model on the CPU and makes it run on `device`, in place or not."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass
class Job:
    """Arguments of a method."""

    model: torch.nn.Module
    blocks: list
    device: str
    budget: int  # Bytes.
    notes: dict = field(default_factory=dict)

    @property
    def block_classes(self):
        return sorted({type(block).__name__ for block in self.blocks})


@dataclass(frozen=True)
class Method:
    name: str
    # GPU memory for weights: "resident": all of them, "minimum": the method's minimum, "budget": the shape's, "free":
    # the method's choice.
    track: str
    start: Callable[[Job], Any]
    # Imported before the measurement.
    package: str | None = None
    needs_gpu: bool = False
    # True if the method adapts to its first forwards, so each shape needs a separate process.
    adapts: bool = False


class Unfit(Exception):
    """The method does not support this."""


def resident(job):
    return job.model.to(job.device)


def memlab_page(budget):
    def start(job):
        import memlab

        return memlab.page(job.model, job.device, budget=job.budget if budget == "shape" else budget)

    return start


def memlab_chunk(job):
    import memlab

    return memlab.chunk(job.model, job.device, f"{job.budget >> 10}KiB", rest="page")


def leading_prefix(job):
    import prefix

    if not job.blocks:
        raise Unfit("the model has no blocks")
    job.notes["leading blocks"] = prefix.page(job.model, job.blocks, job.device, job.budget)
    return job.model


def seed_page(job):
    import seed

    return seed.page(job.model, job.device)


def accelerate_cpu(job):
    import accelerate

    return accelerate.cpu_offload(job.model, execution_device=torch.device(job.device))


def accelerate_dispatch(job):
    import accelerate

    # A large limit for the CPU, because accelerate fails if it considers host memory too small.
    limits = {0: job.budget, "cpu": 1 << 50}
    places = accelerate.infer_auto_device_map(job.model, limits, no_split_module_classes=job.block_classes)
    on_gpu = [name for name, place in places.items() if place == 0]
    job.notes["on the GPU"] = len(on_gpu)
    if not on_gpu:
        return accelerate.cpu_offload(job.model, execution_device=torch.device(job.device))
    return accelerate.dispatch_model(job.model, places, main_device=0)


def diffusers_group(kind):
    def start(job):
        from diffusers.hooks import apply_group_offloading

        groups = {"num_blocks_per_group": 1} if kind == "block_level" else {}
        apply_group_offloading(
            job.model,
            onload_device=torch.device(job.device),
            offload_device=torch.device("cpu"),
            offload_type=kind,
            use_stream=job.device != "cpu",
            record_stream=job.device != "cpu",
            **groups,
        )
        return job.model

    return start


def mmgp_all(whole):
    def start(job):
        from mmgp import offload

        # In MiB and in a dictionary, because mmgp 3.8 reads a plain number as 0.
        megabytes = max(1, job.budget // (1 << 20)) if whole else 1
        offload.all(
            {"model": job.model},
            pinnedMemory=True,
            quantizeTransformer=False,
            convertWeightsFloatTo=None,
            perc_reserved_mem_max=0.8,
            budgets={"model": megabytes},
            verboseLevel=0,
        )
        return job.model

    return start


METHODS = {
    method.name: method
    for method in (
        Method("resident", "resident", resident),
        Method("memlab-min", "minimum", memlab_page("min"), "memlab"),
        Method("memlab", "free", memlab_page(None), "memlab", adapts=True),
        Method("memlab-budget", "budget", memlab_page("shape"), "memlab", adapts=True),
        Method("memlab-chunk", "budget", memlab_chunk, "memlab", adapts=True),
        Method("prefix", "budget", leading_prefix, needs_gpu=True),
        Method("seed", "minimum", seed_page),
        Method("accelerate-cpu", "minimum", accelerate_cpu, "accelerate"),
        Method("accelerate-dispatch", "budget", accelerate_dispatch, "accelerate", needs_gpu=True),
        Method("diffusers-block", "minimum", diffusers_group("block_level"), "diffusers.hooks"),
        Method("diffusers-leaf", "minimum", diffusers_group("leaf_level"), "diffusers.hooks"),
        Method("mmgp", "minimum", mmgp_all(False), "mmgp.offload", needs_gpu=True),
        Method("mmgp-budget", "budget", mmgp_all(True), "mmgp.offload", needs_gpu=True),
    )
}


def fitting(shape, asked):
    """Methods that apply to this shape, of the requested ones (None: of all)."""
    if asked:
        return [METHODS[name] for name in asked]
    if shape.percent is not None:
        return [method for method in METHODS.values() if method.track in ("resident", "budget")]
    # Without a budget, a shape gets one of two blocks: the minimum of other tools. memlab gets the same.
    return [method for method in METHODS.values() if method.track != "budget" or method.name == "memlab-budget"]


def versions():
    """Versions of the compared packages."""
    from importlib import metadata

    found: dict[str, str | None] = {}
    for name in ("torch", "memlab", "accelerate", "diffusers", "mmgp", "optimum-quanto", "transformers"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def in_words(error):
    """Formats an exception in one line."""
    if isinstance(error, ModuleNotFoundError):
        return f"{error.name} is not installed"
    text = re.sub(r"\s+", " ", str(error)).strip()
    return f"{type(error).__name__}: {text}"[:300]
