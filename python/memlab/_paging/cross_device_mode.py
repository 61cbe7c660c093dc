"""Moves tensors, such as a KV cache, that the surveyed forward left on the first device.

Used in the first forward on all devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from memlab._paging.torch_private import COPIES, OperationMode, tree_map_only
from memlab._paging.tracing import tensors_in, written_by


class CrossDeviceMode(OperationMode):
    """Moves an operation's inputs from other GPUs to the GPU of the forward."""

    supports_higher_order_operators = True

    def __init__(self, device: Callable[[], torch.device]) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = {tensor.device for tensor in tensors_in((args, kwargs)) if tensor.device.type == "cuda"}
        # A copy from one device to another has tensors on both.
        if len(found) < 2 or func in COPIES:
            return func(*args, **kwargs)
        here = self.device()
        if any(tensor.device != here for tensor in written_by(func, args, kwargs)):
            raise RuntimeError(
                f"this forward writes to a tensor on another device than {here}, where memlab.page has put the layer: "
                "memory that lasts from one forward to the next, such as a static cache, is to be made after the first "
                "forward of a model over several devices"
            )

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(here) if tensor.device.type == "cuda" else tensor

        return func(*tree_map_only(Tensor, moved, args), **tree_map_only(Tensor, moved, kwargs))
