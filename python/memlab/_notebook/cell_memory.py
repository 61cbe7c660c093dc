"""The GPU memory of a cell."""

from __future__ import annotations

from html import escape
from typing import Any

from memlab import _native
from memlab._notebook import html_style
from memlab._notebook.chart import chart, seconds
from memlab._notebook.html_style import signed_size, size
from memlab.process_recording import why_not
from memlab.watching import watch

_LINES = 15
_LAYERS = 12

_Rows = list[tuple[list[int], str, str]]


class CellMemory:
    """The figures of a completed or running cell, in bytes, as in `memlab.watch`. `allocated`, and the part of it that was
    `kept`, are sums over its lines.

    Displayed as HTML in a notebook, with its peak, kept memory, a chart over time, and lines; as text elsewhere.
    """

    def __init__(self, name: str, watched: watch, ended: bool = True, error: str | None = None) -> None:
        self.name = name
        self.device = watched.device
        self.start, self.peak, self.end = watched.start, watched.peak, watched.end
        self.growth = self.peak - self.start
        self.peak_reserved = watched.peak_reserved
        self.has_gap = watched.has_gap
        self.lines = watched.lines
        self.layers = watched.layers
        self.categories_at_peak = [(row.category, row.at_peak) for row in watched.categories]
        self.allocated = sum(line.allocated for line in self.lines)
        # A part of `allocated`: memory from before the cell that it freed does not count.
        self.kept = sum(line.kept for line in self.lines)
        self.device_name, self.device_bytes = _native.device_facts(self.device)
        self.error = error
        self._ended = ended
        self._why_not = why_not()
        self._is_stopped = not _native.books_active()
        self.timeline = watched.timeline

    @property
    def seconds(self) -> float:
        """Duration of the cell."""
        return self.timeline.duration / 1e9

    def _title(self) -> str:
        took = seconds(self.timeline.duration)
        if not self._ended:
            return f"{self.name} has been running for {took}"
        return f"{self.name} failed after {took}: {self.error}" if self.error else f"{self.name} took {took}"

    def _summary(self) -> str:
        until = "after" if self._ended else "now"
        return (
            f"before {size(self.start)}, peak {size(self.peak)} ({signed_size(self.growth)}), {until} {size(self.end)} "
            f"({signed_size(self.end - self.start)}); {'kept' if self._ended else 'holds'} {size(self.kept)} of the "
            f"{size(self.allocated)} that it allocated"
        )

    def _notes(self) -> list[str]:
        notes = [f"no figures: {self._why_not}"] if self._why_not else []
        if not notes and self._is_stopped:
            notes.append("no figures: `memlab.stop()` ended the recording before the cell ended")
        if self.has_gap:
            notes.append("events are missing: the figures cover the time before")
        return notes

    def _line_rows(self) -> tuple[_Rows, list[int]]:
        """Rows of sizes (at the peak, kept, allocated), and their sums."""
        busy = [line for line in self.lines if line.allocated]
        idle = [line for line in self.lines if not line.allocated]
        busy.sort(key=lambda line: (line.at_peak, line.allocated), reverse=True)
        rows: _Rows = [
            ([line.at_peak, line.kept, line.allocated], html_style.place(line.file, line.line), line.code or "")
            for line in busy
        ]
        if len(rows) > _LINES:
            rest = [sizes for sizes, _, _ in rows[_LINES:]]
            rows[_LINES:] = [([sum(column) for column in zip(*rest, strict=True)], html_style.more_lines(len(rest)), "")]
        before = sum(line.at_peak for line in idle)
        if before:
            rows.append(([before, 0, 0], "from before the cell", ""))
        return rows, [sum(column) for column in zip(*(sizes for sizes, _, _ in rows), strict=True)]

    def _layer_rows(self) -> _Rows:
        layers = [layer for layer in self.layers if layer.name is not None and layer.at_peak][:_LAYERS]
        return [([layer.at_peak, layer.at_end], html_style.layer_place(*layer[:3]), "") for layer in layers]

    def __repr__(self) -> str:
        parts = [f"{self._title()}: {self._summary()}", *self._notes()]
        rows, sums = self._line_rows()
        if rows:
            parts.append(html_style.text_table(("at the peak", "kept", "allocated"), rows, sums))
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        rows, sums = self._line_rows()
        bad = ' class="bad"' if self.error else ""
        device = f"cuda:{self.device}" + (f", {escape(self.device_name)}" if self.device_name else "")
        parts = [
            f"<p{bad}><b>{escape(self._title())}</b> <span class='dim'>{device}</span><br>{self._summary()}</p>",
            *(f"<p class='bad'>{escape(note)}</p>" for note in self._notes()),
            chart(self.timeline, self.peak, self._ended),
        ]
        if rows:
            parts.append(html_style.table("By line", ("at the peak", "kept", "allocated"), rows, sums))
        used = sum(nbytes for _, nbytes in self.categories_at_peak)
        if used:
            parts.append(f"<p><b>In use at the peak</b> {size(used)}</p>{html_style.category_bar(self.categories_at_peak)}")
        layers = self._layer_rows()
        if layers:
            inner = html_style.table("", ("at the peak", "at the end"), layers)
            parts.append(f"<details><summary>By layer</summary>{inner}</details>")
        return html_style.document(*parts)

    def _repr_mimebundle_(self, **_ignored: Any) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._repr_html_()}
