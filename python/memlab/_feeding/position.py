"""How far a training is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Position:
    """In an epoch, after so many samples. Outlives the iterator that a loop threw away."""

    epoch: int
    delivered: int
    begun: bool = False
    """Whether a loop has asked for a batch: then the next epoch is another one."""
