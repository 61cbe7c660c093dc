"""Names the memory that stayed on a GPU: by category, line and layer where memlab keeps books, as one sum elsewhere."""

from __future__ import annotations

from typing import NamedTuple

import torch

from memlab._courtesy.result import StayedMemory

UNREACHABLE = "held where Python cannot reach it"


class Memory(NamedTuple):
    """A range of device memory."""

    device: int
    address: int
    nbytes: int

    @classmethod
    def of(cls, storages: list[torch.UntypedStorage]) -> Memory:
        """What storages over the same memory use of it."""
        first = min(storage.data_ptr() for storage in storages)
        last = max(storage.data_ptr() + storage.nbytes() for storage in storages)
        return cls(storages[0].device.index, first, last - first)

    def overlaps(self, other: Memory) -> bool:
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes


def held_elsewhere(device: int, known: list[Memory]) -> list[StayedMemory]:
    """What PyTorch still has allocated on a device, but for the blocks of `known`."""
    held = 0
    for block in _blocks(device):
        if not any(block.overlaps(memory) for memory in known):
            held += block.nbytes
    return [StayedMemory(device, held, UNREACHABLE)] if held else []


def _blocks(device: int) -> list[Memory]:
    """The blocks that PyTorch's caching allocator has handed out; none where another allocator is used."""
    try:
        segments = torch.cuda.memory_snapshot()
    except RuntimeError:
        return []
    return [
        Memory(device, block["address"], block["size"])
        for segment in segments
        if segment["device"] == device
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
