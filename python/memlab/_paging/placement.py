"""Resident units, and the places of the other units in the ring."""

from __future__ import annotations

from dataclasses import dataclass

# Copies over a place that becomes free in parts are made in pieces. Each wait is followed by at least this many bytes.
LEAST_PIECE = 16 << 20


@dataclass
class Placement:
    """The planner's result, with its field names. Sizes are bytes, times nanoseconds."""

    resident: list[bool]
    places: list[tuple[int, int] | None]  # Per unit: offset and bytes in the ring, or None: resident.
    ring_bytes: int
    resident_bytes: int
    predicted_ns: int
    floor_ns: int
    compute_ns: int
    streamed_bytes: int
