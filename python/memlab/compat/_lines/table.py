"""Line profiles as text and as HTML."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from memlab._native import short_size
from memlab._tools.functions import Code
from memlab._tools.tables import aligned
from memlab.compat._lines.columns import LineFigures, is_bytes, value_of

# Bars in a notebook: a colour that is readable in light and dark themes, behind text of the theme's own colour.
_BAR = "rgba(86, 156, 214, .45)"


@dataclass
class FunctionProfile:
    """Table content of one function."""

    code: Code
    lines: Mapping[int, LineFigures]
    no_data: str | None
    """Reason for missing figures; None if figures exist."""

    def rows(self) -> list[tuple[int, str, LineFigures | None]]:
        """Returns number, text and figures of all its lines, from the `def` line on."""
        source = dict(self.code.source())
        first = self.code.def_line()
        numbers = sorted({number for number in source if number >= first} | set(self.lines))
        return [(number, source.get(number, ""), self.lines.get(number)) for number in numbers]


def readable(value: int | None, in_bytes: bool) -> str:
    """Formats `40.00K`; a count as it is; nothing for an unknown value."""
    if value is None:
        return ""
    return short_size(value) if in_bytes else str(value)


def as_text(profile: FunctionProfile, columns: Sequence[str]) -> str:
    """Returns the table of a function for a terminal."""
    title = f"## {profile.code.name}\n"
    if profile.no_data is not None:
        return f"{title}\nno data: {profile.no_data}\n"
    shown = [(value_of(column), is_bytes(column)) for column in columns]
    # The parts of a column's name stand below each other.
    parts = [[*column.split("."), "", ""][:3] for column in columns]
    first, *more = zip(*parts, strict=True) if parts else [()]
    rows = [(*first, "line", "", "code"), *((*level, "", "", "") for level in more if any(level))]
    for number, text, figures in profile.rows():
        cells = (readable(value(figures), in_bytes) if figures else "" for value, in_bytes in shown)
        rows.append((*cells, str(number), "", text))
    return "\n".join([title, *aligned(rows, left=[len(rows[0]) - 1], gap=" ")]) + "\n"


def as_html(profile: FunctionProfile, columns: Sequence[str]) -> str:
    """Returns the table of a function, with bars, for a notebook."""
    title = f"<h4 style='font-family:monospace'>{html.escape(profile.code.name)}</h4>"
    if profile.no_data is not None:
        return f"<div class='memlab-lines'>{title}<p>no data: {html.escape(profile.no_data)}</p></div>"
    shown = [(value_of(column), is_bytes(column)) for column in columns]
    rows = [
        (number, text, [value(figures) if figures else None for value, _ in shown])
        for number, text, figures in profile.rows()
    ]
    most = [max((abs(values[index] or 0) for _, _, values in rows), default=0) for index in range(len(columns))]
    heads = "".join(
        f"<th style='text-align:right'>{'<br>'.join(map(html.escape, column.split('.')))}</th>" for column in columns
    )
    body = []
    for number, text, values in rows:
        cells = []
        for value, largest, (_, in_bytes) in zip(values, most, shown, strict=True):
            share = 100 * abs(value or 0) / largest if largest else 0
            bar = f"background:linear-gradient(90deg,{_BAR} {share:.1f}%,transparent {share:.1f}%)"
            cells.append(f"<td style='text-align:right;{bar}'>{readable(value, in_bytes)}</td>")
        code = f"<td style='text-align:left;white-space:pre'><code>{html.escape(text)}</code></td>"
        body.append(f"<tr>{''.join(cells)}<td style='text-align:right;opacity:.6'>{number}</td>{code}</tr>")
    return (
        f"<div class='memlab-lines' style='overflow-x:auto'>{title}"
        f"<table><thead><tr style='vertical-align:bottom'>{heads}<th>line</th>"
        f"<th style='text-align:left'>code</th></tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )
