"""Hooks of accelerate and diffusers: reports a paged model to them, and refuses hooks that exclude paging."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

# Attributes for accelerate's hook of a module, and for diffusers' registry of hooks.
ACCELERATE = "_hf_hook"
DIFFUSERS = "_diffusers_hook"

# Hooks of diffusers that move or cast weights, by their names in the registry.
_MOVING = ("group_offloading", "lazy_prefetch_group_offloading", "layer_execution_tracker", "layerwise_casting")


class ExecutionDevice:
    """Replaces accelerate's hook of an offloaded model, and names the device on which the model runs.

    Diffusers pipelines, and transformers models that call others, create their inputs on this device. The weights of such a
    model may be elsewhere, as they are here.
    """

    def __init__(self, device: torch.device) -> None:
        self.execution_device = device
        self.io_same_device = False  # transformers sets it for `generate`. Results stay on the device here.

    def init_hook(self, module: nn.Module) -> nn.Module:
        return module

    def pre_forward(self, _module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return args, kwargs

    def post_forward(self, _module: nn.Module, output: Any) -> Any:
        return output

    def detach_hook(self, module: nn.Module) -> nn.Module:
        return module


def refuse_hooked(model: nn.Module) -> None:
    """Raises RuntimeError that names a module whose hook moves its weights or inputs, as paging does."""
    for name, module in model.named_modules():
        named = f"{name} of this model" if name else "this model"
        hook = module.__dict__.get(ACCELERATE)
        if hook is not None and not isinstance(hook, ExecutionDevice):
            raise RuntimeError(
                f"{named} has a hook of accelerate ({type(hook).__name__}), which moves weights or inputs itself: call "
                "accelerate.hooks.remove_hook_from_module(model, recurse=True) before paging. Load the model without "
                "device_map, so that no weight is left on the disk or on the meta device"
            )
        hooks = getattr(module.__dict__.get(DIFFUSERS), "hooks", {})
        moving = next((kind for kind in _MOVING if kind in hooks), None)
        if moving is not None:
            raise RuntimeError(
                f"{named} has a hook of diffusers ({moving}), which moves or casts weights itself: page the model without "
                "enable_group_offload() and enable_layerwise_casting()"
            )
