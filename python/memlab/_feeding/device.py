"""The device of the batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def feeding_device(device: Any) -> torch.device:
    """The device with its index.

    Raises:
        RuntimeError: PyTorch finds no CUDA device, or the text names no device.
        ValueError: it is neither a CUDA device nor the CPU.
    """
    import torch

    where = torch.device(device)
    if where.type == "cpu":
        return where
    if where.type != "cuda":
        raise ValueError(
            f"device={device!r}: must be a CUDA device or the CPU; move batches to others in apply_on_input_batch"
        )
    if not torch.cuda.is_available():
        raise RuntimeError(f"device={device!r}: PyTorch finds no CUDA device here")
    return torch.device("cuda", torch.cuda.current_device() if where.index is None else where.index)
