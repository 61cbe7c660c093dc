"""Tables and lists as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Lines with their cells below each other, at the right of columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def listed(things: Iterable[object]) -> str:
    """``"2, 4 and 32"``."""
    *first, last = map(str, things)
    return f"{', '.join(first)} and {last}" if first else last
