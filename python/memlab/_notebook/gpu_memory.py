"""The current memory of a GPU."""

from __future__ import annotations

from html import escape
from typing import Any

from memlab import _native
from memlab._notebook import html_style
from memlab._notebook.html_style import size
from memlab.process_recording import why_not
from memlab.tracking import tracker


class GpuMemory:
    """The memory of a GPU at one moment, in bytes, as in `memlab.tracker`, with its largest lines and layers.

    Displayed as HTML in a notebook, as text elsewhere.
    """

    def __init__(self, device: int, rows: int = 10) -> None:
        self.device = device
        self.totals = tracker.totals(device)
        self.categories = tracker.by_category(device)
        self.lines = tracker.by_line(device)
        self.layers = [layer for layer in tracker.by_layer(device) if layer.live and layer.name is not None]
        self.name, self.total = _native.device_facts(device)
        self._rows = rows
        self._why_not = why_not()

    def _title(self) -> str:
        return f"cuda:{self.device}" + (f" {self.name}" if self.name else "")

    def _summary(self) -> str:
        totals = self.totals
        of = f" of {size(self.total)}" if self.total else ""
        return (
            f"in use {size(totals.used)}{of}, reserved {size(totals.reserved)} (peak {size(totals.peak_reserved)}), "
            f"allocated {size(totals.allocated)} (peak {size(totals.peak_allocated)})"
        )

    def _line_rows(self) -> tuple[list[tuple[list[int], str, str]], list[int]]:
        shown = [line for line in self.lines[: self._rows] if line.live]
        rows = [([line.live, line.at_peak], html_style.place(line.file, line.line), line.code or "") for line in shown]
        rest = [line for line in self.lines[len(shown) :] if line.live or line.at_peak]
        if rest:
            sums = [sum(line.live for line in rest), sum(line.at_peak for line in rest)]
            rows.append((sums, html_style.more_lines(len(rest)), ""))
        return rows, [sum(column) for column in zip(*(sizes for sizes, _, _ in rows), strict=True)]

    def _layer_rows(self) -> list[tuple[list[int], str, str]]:
        layers = self.layers[: self._rows]
        return [
            ([layer.live, layer.at_peak], html_style.layer_place(layer.root, layer.name, layer.kind), "") for layer in layers
        ]

    def __repr__(self) -> str:
        parts = [f"{self._title()}: {self._summary()}"]
        if self._why_not:
            return f"{parts[0]}\nno figures: {self._why_not}"
        parts += [f"{size(row.live):>13}  {html_style.category_name(row.category)}" for row in self.categories if row.live]
        rows, sums = self._line_rows()
        if rows:
            parts.append("by line:\n" + html_style.text_table(("now", "at the peak"), rows, sums))
        layers = self._layer_rows()
        if layers:
            parts.append("by layer:\n" + html_style.text_table(("now", "at the peak"), layers))
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{escape(self._title())}</b><br>{self._summary()}</p>"]
        if self._why_not:
            parts.append(f"<p class='bad'>no figures: {escape(self._why_not)}</p>")
        parts.append(html_style.share_bar(self.totals.used, self.total))
        parts.append(f"<p><b>In use</b> {size(self.totals.used)}</p>")
        parts.append(html_style.category_bar((row.category, row.live) for row in self.categories))
        rows, sums = self._line_rows()
        if rows:
            parts.append(html_style.table("By line", ("now", "at the peak"), rows, sums))
        layers = self._layer_rows()
        if layers:
            inner = html_style.table("", ("now", "at the peak"), layers)
            parts.append(f"<details open><summary>By layer</summary>{inner}</details>")
        return html_style.document(*parts)

    def _repr_mimebundle_(self, **_ignored: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}
