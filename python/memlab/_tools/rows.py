"""Rows of figures in a list that prints as a table."""

from __future__ import annotations

from html import escape
from typing import NamedTuple, TypeVar

from memlab import _native
from memlab._tools.tables import aligned

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
        names, shown = self[0]._fields, self[:_MOST_ROWS]
        columns = enumerate(zip(*shown, strict=True))
        texts = [column for column, values in columns if any(isinstance(value, str) for value in values)]
        lines = aligned([names, *(list(map(_shown, names, row)) for row in shown)], left=texts)
        more = len(self) - _MOST_ROWS
        return "\n".join([*lines, f"… {more} more"] if more > 0 else lines)

    def _repr_html_(self) -> str:
        if not self:
            return "<p>none</p>"
        shown = self[:_MOST_ROWS]
        heads = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in self[0]._fields)
        rows = "".join(f"<tr>{''.join(map(_cell, row._fields, row))}</tr>" for row in shown)
        more = len(self) - _MOST_ROWS
        rest = f"<p>… {more} more</p>" if more > 0 else ""
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{rest}"


def _cell(name: str, value: object) -> str:
    side = "left" if isinstance(value, str) else "right"
    return f'<td style="text-align:{side}">{escape(_shown(name, value))}</td>'


def _shown(name: str, value: object) -> str:
    if value is None:
        return "-"
    return _native.format_size(value) if isinstance(value, int) and name not in _NO_SIZES else str(value)
