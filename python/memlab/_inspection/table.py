"""Tables as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """Lines with their cells below each other, at the right of columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
