"""The columns of a line profile: PyTorch's counters, and figures of the line itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from memlab.compat._lines.hooks import METRICS, POOLS, SAMPLED

# Counters that are computed from events. Active memory equals allocated memory.
_COUNTED = {"allocation": 0, "allocated_bytes": 1, "active": 0, "active_bytes": 1, "segment": 2, "reserved_bytes": 3}

OWN = {
    "line.peak_delta": "the most that one execution of the line had more allocated than at its beginning",
    "line.allocated": "bytes that the line allocated, in it or below it, on any thread and in backward",
    "line.freed": "how much of that has been freed since",
    "line.kept": "how much of that is live now",
    "line.backward": "how much of that backward allocated for operations of the line",
    "line.allocations": "how many blocks they were",
    "line.hits": "how often the line ran",
}
DEFAULT_COLUMNS = (
    "active_bytes.all.peak",
    "reserved_bytes.all.peak",
    "line.peak_delta",
    "line.allocated",
    "line.kept",
)

_Counters = list[list[int]]


@dataclass
class LineFigures:
    """Figures of one line. For several devices, the highest value of each counter."""

    hits: int = 0
    counters: dict[str, _Counters] = field(default_factory=dict)
    peak_delta: int = 0
    allocated: int = 0
    allocations: int = 0
    freed: int = 0
    backward: int = 0
    sample: list[list[int]] | None = None

    def add(self, other: LineFigures) -> None:
        """Adds the figures of another device."""
        self.hits += other.hits
        for metric, counters in other.counters.items():
            self.counters[metric] = _most(self.counters.get(metric), counters)
        self.peak_delta = max(self.peak_delta, other.peak_delta)
        self.allocated += other.allocated
        self.allocations += other.allocations
        self.freed += other.freed
        self.backward += other.backward
        if other.sample is not None:
            self.sample = _most(self.sample, other.sample)


def _most(one: _Counters | None, other: _Counters) -> _Counters:
    if one is None:
        return other
    return [[max(a, b) for a, b in zip(*rows, strict=True)] for rows in zip(one, other, strict=True)]


def is_bytes(column: str) -> bool:
    """Returns True if a column contains bytes; otherwise it counts."""
    return "_bytes" in column or (column.startswith("line.") and column not in ("line.hits", "line.allocations"))


def value_of(column: str) -> Callable[[LineFigures], int | None]:
    """Returns a function that reads a column's value of a line; None: unknown.

    Raises ValueError if the column does not exist.
    """
    if column in OWN:
        return lambda figures: _own(column, figures)
    name, _, rest = column.partition(".")
    pool, _, metric = rest.partition(".")
    if pool in POOLS and metric in METRICS and name in (*_COUNTED, *SAMPLED):
        index = POOLS.index(pool)
        if name in _COUNTED:
            counter = _COUNTED[name]
            return lambda figures: figures.counters[metric][counter][index] if figures.hits else None
        row, place = SAMPLED.index(name) * len(POOLS) + index, METRICS.index(metric)
        return lambda figures: None if figures.sample is None else figures.sample[row][place]
    raise ValueError(
        f"{column!r} is no column: use a key of torch.cuda.memory_stats() such as 'active_bytes.all.peak' "
        f"({', '.join((*_COUNTED, *SAMPLED))}; {', '.join(POOLS)}; {', '.join(METRICS)}), or one of {', '.join(OWN)}"
    )


def _own(column: str, figures: LineFigures) -> int | None:
    values = {
        "line.peak_delta": figures.peak_delta if figures.hits else None,
        "line.allocated": figures.allocated,
        "line.freed": figures.freed,
        "line.kept": figures.allocated - figures.freed,
        "line.backward": figures.backward,
        "line.allocations": figures.allocations,
        "line.hits": figures.hits,
    }
    return values[column]
