"""Names the memory that stayed on a GPU: by category, line and layer if memlab records the program, otherwise as one sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import torch

from memlab import _native
from memlab._paging.torch_private import shows_saved
from memlab.compat._courtesy.result import StayedMemory
from memlab.tracking import tracker

UNREACHABLE = "held where Python cannot reach it"


class Memory(NamedTuple):
    """A range of device memory."""

    device: int
    address: int
    nbytes: int

    @classmethod
    def of(cls, storages: list[torch.UntypedStorage]) -> Memory:
        """Returns the range that storages over the same memory use of it."""
        first = min(storage.data_ptr() for storage in storages)
        last = max(storage.data_ptr() + storage.nbytes() for storage in storages)
        return cls(storages[0].device.index, first, last - first)

    def overlaps(self, other: Memory) -> bool:
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes


def held_elsewhere(device: int, known: list[Memory]) -> list[StayedMemory]:
    """Returns the memory that PyTorch still has allocated on a device, except the blocks of `known`."""
    places: Counter[_BlockOrigin] = Counter()
    for block, place in _recorded(device) if _native.library_found() else _snapshot(device):
        if not any(block.overlaps(memory) for memory in known):
            places[place] += block.nbytes
    hidden = "" if shows_saved() else f", or saved for backward, which PyTorch {torch.__version__} does not show"
    return [StayedMemory(device, nbytes, UNREACHABLE + hidden, *place) for place, nbytes in places.items()]


class _BlockOrigin(NamedTuple):
    """Origin of a block, as far as it is known."""

    category: str | None = None
    line: str | None = None
    layer: str | None = None


def _recorded(device: int) -> Iterator[tuple[Memory, _BlockOrigin]]:
    """Yields the live blocks that memlab has recorded."""
    for block in tracker.live_blocks(device):
        line = f"{block.file}:{block.line} {block.function or ''}".rstrip() if block.file else None
        yield Memory(device, block.address, block.nbytes), _BlockOrigin(block.category, line, block.layer)


def _snapshot(device: int) -> Iterator[tuple[Memory, _BlockOrigin]]:
    """Yields the live blocks of PyTorch's caching allocator; none if another allocator is used."""
    try:
        segments = torch.cuda.memory_snapshot()
    except RuntimeError:
        return
    for segment in segments:
        for block in segment["blocks"]:
            if segment["device"] == device and block["state"] == "active_allocated":
                yield Memory(device, block["address"], block["size"]), _BlockOrigin()
