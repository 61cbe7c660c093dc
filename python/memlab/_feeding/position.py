"""How far a training is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Position:
    """In an epoch, after so many samples. Outlives the iterator that a loop threw away."""

    epoch: int
    delivered: int
