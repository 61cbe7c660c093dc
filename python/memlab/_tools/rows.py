"""Rows of figures as a list that prints as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from memlab import _native

_Row = TypeVar("_Row", bound=NamedTuple)

_MOST_ROWS = 20
_NO_SIZES = {"address", "line", "allocations", "blocks"}  # Integers that are not bytes.


class Rows(list[_Row]):
    """A list of named tuples. Its first rows print as a table.

    >>> class Held(NamedTuple):
    ...     category: str
    ...     live: int
    >>> Rows([Held("parameter", 4 << 20), Held("gradient", 0)])
    category       live
    parameter  4.00 MiB
    gradient        0 B
    """

    def __repr__(self) -> str:
        if not self:
            return "[]"
        columns = [
            _column(name, values) for name, values in zip(self[0]._fields, zip(*self[:_MOST_ROWS], strict=True), strict=True)
        ]
        lines = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
        more = len(self) - _MOST_ROWS
        return "\n".join([*lines, f"… {more} more"] if more > 0 else lines)


def _column(name: str, values: Sequence[object]) -> list[str]:
    """The cells of a column, the header first: text at the left, figures at the right."""
    cells = [name, *(_shown(name, value) for value in values)]
    width = max(map(len, cells))
    is_text = any(isinstance(value, str) for value in values)
    return [cell.ljust(width) if is_text else cell.rjust(width) for cell in cells]


def _shown(name: str, value: object) -> str:
    if value is None:
        return "-"
    return _native.format_size(value) if isinstance(value, int) and name not in _NO_SIZES else str(value)
