"""The arguments of `memlab.page`, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

# What to do when a weight was edited between forwards: raise, or copy it to the device.
OnChange = Literal["error", "upload"]


@dataclass(frozen=True)
class Settings:
    """See `memlab.page` for what each means."""

    device: torch.device
    max_layer_size: int = -1
    budget: int | str | None = None  # Bytes, "min", or None: as little as still hides the copies.
    lookahead: int | None = None  # Units; None: as many as the ring holds.
    micro_batch: int | None = None
    on_change: OnChange = "error"
    bytes_per_second: float | None = None  # Paces the copies of the host backend.
