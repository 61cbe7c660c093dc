"""Device memory that is below no tensor that Python holds: what it is, and the line and layer that took it."""

from __future__ import annotations

from typing import NamedTuple

BLOCK_GRANULE = 512  # The caching allocator hands out multiples of this many bytes.

# Categories that `memlab.tracker` does not have: what blocks have more than the tensors in them need, and what is known of
# unseen memory without a tracker.
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
    """The size of the smallest block that has room for so many bytes."""
    return -(-nbytes // BLOCK_GRANULE) * BLOCK_GRANULE
