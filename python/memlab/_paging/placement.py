"""Which units are resident, and where in the ring the others are loaded."""

from __future__ import annotations

from dataclasses import dataclass

# A unit over a place of which a part is free first is copied in pieces; after each wait, at least so many bytes.
LEAST_PIECE = 16 << 20


@dataclass
class Placement:
    """What the planner found, with its field names. Sizes are bytes, times nanoseconds."""

    resident: list[bool]
    places: list[tuple[int, int] | None]  # Per unit: offset and bytes in the ring, or None: resident.
    ring_bytes: int
    resident_bytes: int
    predicted_ns: int
    floor_ns: int
    compute_ns: int
    streamed_bytes: int
