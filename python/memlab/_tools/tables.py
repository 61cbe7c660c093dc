"""Tables and lists as text."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = (), gap: str = "  ") -> list[str]:
    """Rows as lines with aligned columns: flush left in the columns `left`, else flush right.

    >>> aligned([("layer", "bytes"), ("0.weight", "64"), ("0.bias", "4096")], left=[0])
    ['layer     bytes', '0.weight     64', '0.bias     4096']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def padded(column: int, cell: str) -> str:
        return cell.ljust(widths[column]) if column in left else cell.rjust(widths[column])

    return [gap.join(padded(column, cell) for column, cell in enumerate(row)).rstrip() for row in rows]


def listed(things: Iterable[object]) -> str:
    """``"2, 4 and 32"``."""
    *first, last = map(str, things)
    return f"{', '.join(first)} and {last}" if first else last
