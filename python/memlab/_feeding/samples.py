"""What loops that expect PyTorch's DataLoader ask of its `dataset`."""

from __future__ import annotations


class Samples:
    """Knows how many rows an epoch has. The rows themselves come in batches, from the feeder."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return self._rows
