"""The `dataset` attribute of a feeder, for loops written for PyTorch's DataLoader."""

from __future__ import annotations


class Samples:
    """Has the number of rows of an epoch as its length. The feeder delivers the rows themselves, in batches."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows
