"""A report of `memlab.MemReporter` as HTML for notebooks: a table for each device, with a bar for each size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

from memlab._native import short_size
from memlab.compat._reporter.device_report import DeviceReport, names_of, what_it_is, where

_ROWS = 200  # Thousands of rows make a notebook slow.

_STYLE = """
.memlab-report table { border-collapse: collapse; margin: 0 0 1em; font-size: 13px; }
.memlab-report caption { text-align: left; font-weight: bold; padding: .4em 0; }
.memlab-report th, .memlab-report td { text-align: left; padding: 1px 12px 1px 0; white-space: nowrap; }
.memlab-report .number { text-align: right; font-variant-numeric: tabular-nums; }
.memlab-report .bar { width: 160px; }
.memlab-report .bar div { height: 9px; background: rgba(86, 156, 214, .7); }
.memlab-report .unseen .bar div { background: rgba(228, 87, 86, .7); }
.memlab-report .outside .bar div { background: rgba(150, 150, 150, .7); }
.memlab-report .holder td { color: #888; }
.memlab-report .holder .bar div { display: none; }
.memlab-report .sum td { font-weight: bold; border-top: 1px solid #8888; }
"""


def report_html(devices: Mapping[str, DeviceReport]) -> str:
    """Returns reports of devices as a fragment of a page, with its own style."""
    tables = "".join(_table(device) for device in devices.values())
    return f'<div class="memlab-report"><style>{_STYLE}</style>{tables or "No tensors."}</div>'


def _table(device: DeviceReport) -> str:
    most = max([*device.sizes, *(row.nbytes for row in device.unseen + device.outside), 1])
    tensors = device.tensors
    rows = []
    for tensor in tensors[:_ROWS]:
        name = escape(tensor.name) + (f" (→ {escape(tensor.shares)})" if tensor.shares else "")
        rows.append(_row("", [name, escape(tensor.shape)], tensor.nbytes, most))
    if len(tensors) > _ROWS:
        rest = tensors[_ROWS:]
        rows.append(_row("", [f"{len(rest)} more tensors", ""], sum(tensor.nbytes for tensor in rest), most))
    rows.append(_sum("Tensors", f"{sum(device.elements)} elements", device.nbytes))
    if device.allocated is not None:
        for entry in device.unseen[:_ROWS]:
            rows.append(_row("unseen", [escape(what_it_is(entry)), escape(where(entry))], entry.nbytes, most))
        if len(device.unseen) > _ROWS:
            others = device.unseen[_ROWS:]
            rows.append(_row("unseen", [f"{len(others)} more lines", ""], sum(row.nbytes for row in others), most))
        for holder in device.holders:
            name = f"↳ kept alive by {escape(names_of(holder))}"
            rows.append(_row("holder", [name, escape(where(holder))], holder.bytes, most))
        rows.append(_sum("Allocated", "", device.allocated))
    if device.used is not None:
        rows += [_row("outside", [escape(what_it_is(entry)), ""], entry.nbytes, most) for entry in device.outside]
        rows.append(_sum("In use on the device", "", device.used))
    head = '<tr><th>Element type</th><th>Size</th><th class="number">Used MEM</th><th></th></tr>'
    return f"<table><caption>Storage on {escape(device.device)}</caption>{head}{''.join(rows)}</table>"


def _row(kind: str, texts: Iterable[str], nbytes: int, most: int) -> str:
    cells = "".join(f"<td>{text}</td>" for text in texts)
    bar = f'<td class="bar"><div style="width:{100 * nbytes / most:.1f}%"></div></td>'
    return f'<tr class="{kind}">{cells}<td class="number">{short_size(nbytes)}</td>{bar}</tr>'


def _sum(title: str, text: str, nbytes: int) -> str:
    return f'<tr class="sum"><td>{title}</td><td>{text}</td><td class="number">{short_size(nbytes)}</td><td></td></tr>'
