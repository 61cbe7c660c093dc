"""Device memory that is below no tensor that Python holds: what it is, and the line and layer that took it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

BLOCK_GRANULE = 512  # The caching allocator hands out multiples of this many bytes.

# Categories that `memlab.tracker` does not have: what blocks have more than the tensors in them need, and what is known of
# unseen memory without a tracker.
ROUNDING = "rounding"
UNKNOWN = "unknown"


def rounded(nbytes: int) -> int:
    """The size of the smallest block that has room for so many bytes."""
    return -(-nbytes // BLOCK_GRANULE) * BLOCK_GRANULE


class Block(Protocol):
    """A block of the caching allocator, as `memlab.tracker.live_blocks` returns it."""

    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def category(self) -> str: ...
    @property
    def file(self) -> str | None: ...
    @property
    def line(self) -> int | None: ...
    @property
    def function(self) -> str | None: ...
    @property
    def layer(self) -> str | None: ...


class UnseenMemory(NamedTuple):
    """Memory below no tensor, of one category, layer and line. `category` is one of `memlab.tracker`'s or ``"rounding"``."""

    category: str
    nbytes: int
    layer: str | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None


class Blocks:
    """The blocks of a device, and how much of each is below tensors."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._blocks = sorted(blocks, key=lambda block: block.address)
        self._starts = [block.address for block in self._blocks]
        self._room = [block.nbytes for block in self._blocks]
        self._is_below_tensors = [False] * len(self._blocks)

    def take(self, address: int, nbytes: int) -> int | None:
        """Counts a tensor's memory in its block, and returns how much of the block it is; None if it is in no block.

        Sizes are rounded as the allocator does it. Of memory that several tensors count, the first has all.
        """
        place = bisect_right(self._starts, address) - 1
        if place < 0 or address >= self._starts[place] + self._blocks[place].nbytes:
            return None
        taken = min(rounded(nbytes), self._room[place])
        self._room[place] -= taken
        self._is_below_tensors[place] = True
        return taken

    def unseen(self) -> list[UnseenMemory]:
        """What is below no tensor, the largest first."""
        sums: dict[UnseenMemory, int] = {}
        for block, room, seen in zip(self._blocks, self._room, self._is_below_tensors, strict=True):
            row = UnseenMemory(block.category, 0, block.layer, block.file, block.line, block.function)
            if seen:
                row = UnseenMemory(ROUNDING, 0)
            sums[row] = sums.get(row, 0) + room
        rows = [row._replace(nbytes=nbytes) for row, nbytes in sums.items() if nbytes]
        return sorted(rows, key=lambda row: (row.category == ROUNDING, -row.nbytes))

    def outside(self, used: Mapping[str, int]) -> list[UnseenMemory]:
        """What a device has in use besides the blocks. `used` is the whole device's memory by category."""
        in_blocks: dict[str, int] = {}
        for block in self._blocks:
            in_blocks[block.category] = in_blocks.get(block.category, 0) + block.nbytes
        rest = {category: nbytes - in_blocks.get(category, 0) for category, nbytes in used.items()}
        return [UnseenMemory(category, nbytes) for category, nbytes in rest.items() if nbytes]
