"""Weights that a forward would train: refused, or moved to the device, where they stay, with a warning."""

from __future__ import annotations

import sys

import torch
from torch import nn

from memlab._paging.device_memory import free_memory
from memlab._paging.paged_tensor import Weight
from memlab._paging.plan_state import TRAINED, PlanState
from memlab._paging.settings import Settings
from memlab._paging.sizes import readable
from memlab._paging.warn import warn


def refuse_training(model: nn.Module, trained: list[Weight], plan: PlanState, settings: Settings, others: bool) -> None:
    """Raises if weights cannot become resident now. `others`: True if other threads are in forwards.

    Raises:
        RuntimeError: all weights would be trained, or other threads or a CUDA graph capture are in the way.
        ValueError: they do not fit in the budget or on the device.
    """
    if all(parameter.requires_grad for parameter in model.parameters()):
        raise RuntimeError(
            "a paged model does not train its paged weights, and all weights of this one require gradients: run it under "
            "torch.no_grad() or torch.inference_mode(), or freeze them (model.requires_grad_(False)) to train what is "
            "around them, such as adapters"
        )
    what = f"{_named(trained)} would be trained in this forward, and so be moved to the device for good"
    if others:
        raise RuntimeError(
            f"{what}, while other threads are in forwards of the model: let the first forward with gradients enabled run "
            "when no other does"
        )
    if settings.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"{what}, which a CUDA graph cannot capture: run such a forward once before capturing it")
    nbytes = sum(weight.padded_nbytes for weight in trained)
    allowed, whose = sys.maxsize, "the device's memory"
    if isinstance(settings.budget, int):
        allowed, whose = settings.budget - plan.resident_tensor_bytes, f"the budget of {readable(settings.budget)}"
    if settings.device.type == "cuda":
        free = free_memory(settings.device) + plan.resident_unit_bytes + plan.ring_bytes
        if free < allowed:
            allowed, whose = free, "the device's memory"
    if nbytes > allowed:
        raise ValueError(
            f"{whose} is too small: {what}, which takes {readable(nbytes)}. Run it under torch.no_grad() or "
            "torch.inference_mode() to train nothing, or freeze what should not train"
        )


def warn_of_training(plan: PlanState) -> None:
    """Warns that most of the model is no longer paged."""
    resident = plan.resident_tensors.get(TRAINED, 0)
    warn(
        f"memlab: a forward with gradients enabled was run, and {readable(resident)} of the {readable(plan.host_bytes)} of "
        "weights require them: these stay on the device from now on, where an optimizer finds them, and are not paged. Run "
        "the model under torch.no_grad() or torch.inference_mode() if it is not to be trained, or freeze what is not.",
    )


def _named(weights: list[Weight]) -> str:
    first = weights[0].name
    return first if len(weights) == 1 else f"{first} and {len(weights) - 1} more"
