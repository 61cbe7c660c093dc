"""The device that a tool is asked about. Never imports torch, never initialises CUDA."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch

Device: TypeAlias = "int | str | torch.device | None"


def index_of(device: Device) -> int:
    """The CUDA ordinal of a device: an int, "cuda:1", a `torch.device`; None: torch's current device, or 0.

    Raises ValueError for a device without GPU memory.
    """
    if device is None:
        return current()
    if isinstance(device, int):
        return device
    kind, _, index = str(device).partition(":")
    if kind != "cuda":
        raise ValueError(f"{device} has no GPU memory: use a number, 'cuda' or 'cuda:1'")
    return int(index) if index else current()


def current() -> int:
    """torch's current device; 0 while CUDA is not in use."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return 0
    # `torch.cuda.current_device()` would initialise CUDA.
    cuda: Any = getattr(torch, "cuda", None)
    if not hasattr(cuda, "is_initialized") or not cuda.is_initialized():  # It may be importing.
        return 0
    return int(cuda.current_device())
