"""Device memory that belongs to no tensor in Python: its category, and the line and layer that allocated it."""

from __future__ import annotations

from typing import NamedTuple

BLOCK_GRANULE = 512  # The caching allocator allocates multiples of this many bytes.

# Categories that `memlab.tracker` does not have: the rounding of blocks above the tensors in them, and unseen memory without
# a tracker.
ROUNDING = "rounding"
UNKNOWN = "unknown"


class UnseenMemory(NamedTuple):
    """Memory below no tensor, of one category, layer and line. `category` is one of `memlab.tracker`'s or ``"rounding"``."""

    category: str
    nbytes: int
    layer: str | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None


def rounded(nbytes: int) -> int:
    """Returns the size of the smallest block with room for this many bytes."""
    return -(-nbytes // BLOCK_GRANULE) * BLOCK_GRANULE
