"""The position of a training within its epochs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Position:
    """An epoch, and the number of samples delivered in it. Outlives an iterator that the loop discarded."""

    epoch: int
    delivered: int
    begun: bool = False
    """True once a loop has asked for a batch: then the next iteration begins another epoch."""
