"""The style of memory figures in a notebook: sizes, colours, HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from memlab import _native


class _CategoryStyle(NamedTuple):
    name: str
    letter: str
    color: str
    ink: str
    """A colour that is readable on `color`."""


# Names and letters as in the dashboard. Colours as on the report's light page, distinguishable for colour-blind people.
_CATEGORY_STYLES = {
    "parameter": _CategoryStyle("parameters", "P", "#0072b2", "#fff"),
    "gradient": _CategoryStyle("gradients", "G", "#de8f05", "#0a0e12"),
    "optimizer_state": _CategoryStyle("optimizer state", "O", "#028a66", "#fff"),
    "buffer": _CategoryStyle("buffers", "B", "#7867b2", "#fff"),
    "kv_cache": _CategoryStyle("KV cache", "K", "#109698", "#0a0e12"),
    "activation": _CategoryStyle("activations", "A", "#cc4c00", "#fff"),
    "input": _CategoryStyle("inputs", "I", "#d6c414", "#0a0e12"),
    "temporary": _CategoryStyle("temporary", "T", "#c26094", "#0a0e12"),
    "gathered": _CategoryStyle("all-gathered", "g", "#9ecc68", "#0a0e12"),
    "reduce_scatter": _CategoryStyle("reduce-scatter", "r", "#5a7a1e", "#fff"),
    "ddp_bucket": _CategoryStyle("DDP buckets", "d", "#3c7052", "#fff"),
    "communication": _CategoryStyle("communication", "N", "#68a834", "#0a0e12"),
    "workspace": _CategoryStyle("workspaces", "W", "#3ea0dc", "#0a0e12"),
    "other_arrays": _CategoryStyle("other arrays", "a", "#b68e4e", "#0a0e12"),
    "benchmark": _CategoryStyle("benchmarks", "k", "#b0506e", "#fff"),
    "before_memlab": _CategoryStyle("before memlab", "b", "#603a8c", "#fff"),
    "cached": _CategoryStyle("cached", "c", "#969ca3", "#0a0e12"),
    "nccl": _CategoryStyle("NCCL", "n", "#888a42", "#0a0e12"),
    "context": _CategoryStyle("CUDA context", "x", "#8a683c", "#fff"),
    "other_processes": _CategoryStyle("other processes", "o", "#6e747c", "#fff"),
    "other": _CategoryStyle("other", "?", "#b8bcc2", "#0a0e12"),
}

# Text has the notebook's colour, light or dark; lines and bars are blended with it. Selectors with `table` override
# JupyterLab's style.
_STYLE = """
.memlab-out{font:13px/1.45 system-ui,-apple-system,"Segoe UI","Noto Sans","DejaVu Sans",sans-serif;
max-width:1000px;margin:4px 0}
.memlab-out p{margin:0 0 6px}
.memlab-out .dim{opacity:.72}
.memlab-out .scroll{overflow-x:auto}
.memlab-out svg{display:block;width:100%;height:auto;max-width:1000px;color:inherit}
.memlab-out svg text{fill:currentColor;font:11px system-ui,"Noto Sans","DejaVu Sans",sans-serif}
.memlab-out .whole{display:flex;height:24px;border-radius:4px;overflow:hidden;
outline:1px solid rgba(128,128,128,.5);margin:2px 1px 4px}
.memlab-out .whole span{overflow:hidden;white-space:nowrap;text-align:center;font-weight:600;line-height:24px;font-size:12px;
box-shadow:inset -1px 0 rgba(255,255,255,.55)}
.memlab-out .share{height:8px;border-radius:4px;overflow:hidden;background:rgba(128,128,128,.35);margin:2px 1px 8px}
.memlab-out .share div{height:8px;background:#0072b2}
.memlab-out ul.legend{display:flex;flex-wrap:wrap;gap:2px 18px;list-style:none;margin:0 0 8px;padding:0}
.memlab-out ul.legend li{margin:0}
.memlab-out i{display:inline-block;width:16px;height:16px;border-radius:3px;margin-right:6px;font:600 11px/16px monospace;
text-align:center;vertical-align:-2px}
.memlab-out table{border-collapse:collapse;margin:0 0 8px;font-size:13px;border:0;width:auto}
.memlab-out caption{text-align:left;font-weight:600;padding:4px 0;color:inherit}
.memlab-out table th,.memlab-out table td{text-align:right;padding:2px 10px;border:0;font-weight:400;
font-variant-numeric:tabular-nums;white-space:nowrap;vertical-align:baseline;background-color:transparent;color:inherit}
.memlab-out table thead th{font-weight:600;vertical-align:bottom;border-bottom:1px solid rgba(128,128,128,.5)}
.memlab-out table th.what,.memlab-out table td.what{text-align:left}
.memlab-out table td.what code{font:12px ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;background:none;
color:inherit;padding:0}
.memlab-out table tr.sum td{font-weight:600;border-top:1px solid rgba(128,128,128,.5)}
.memlab-out details{margin:0 0 6px}
.memlab-out summary{cursor:pointer}
.memlab-out .bad{border-left:4px solid #d55e00;padding-left:8px}
"""


def size(nbytes: int) -> str:
    """`1.50 GiB`; `-512 KiB` for negative sizes."""
    return f"-{_native.format_size(-nbytes)}" if nbytes < 0 else _native.format_size(nbytes)


def signed_size(nbytes: int) -> str:
    """`+1.50 GiB` for growth, `-512 KiB` for a decrease."""
    return f"+{size(nbytes)}" if nbytes > 0 else size(nbytes)


def category_name(category: str) -> str:
    """The displayed name of a category."""
    return _CATEGORY_STYLES[category].name


def document(*parts: str) -> str:
    """Combines parts of a page into one output of a cell."""
    return f'<div class="memlab-out"><style>{_STYLE}</style>{"".join(parts)}</div>'


def place(file: str | None, line: int | None) -> str:
    """`In[3]:2`, `train.py:20`: a line without the folders of its file."""
    return "(no Python line)" if file is None else f"{file.rsplit('/', 1)[-1]}:{line}"


def more_lines(count: int) -> str:
    """A label for the lines without a row."""
    return "1 more line" if count == 1 else f"{count} more lines"


def layer_place(root: str | None, name: str | None, kind: str | None) -> str:
    """`model.blocks.3 (Block)`."""
    if name is None:
        return "(outside layers)"
    whole = f"{root}.{name}" if root and name else name or root or "(the model)"
    return f"{whole} ({kind})" if kind else whole


def share_bar(part: int, whole: int) -> str:
    """A thin bar for a part of a whole; empty if the whole is not known."""
    if not whole:
        return ""
    share = min(100.0, 100 * part / whole)
    return f'<div class="share" title="{share:.0f} % of {size(whole)}"><div style="width:{share:.2f}%"></div></div>'


def category_bar(held: Iterable[tuple[str, int]]) -> str:
    """A bar of bytes by category, with a legend below it."""
    held = [(category, nbytes) for category, nbytes in held if nbytes > 0]
    whole = sum(nbytes for _, nbytes in held)
    if whole == 0:
        return ""
    spans, names = [], []
    for category, nbytes in held:
        look = _CATEGORY_STYLES[category]
        share = 100 * nbytes / whole
        colors = f"background:{look.color};color:{look.ink}"
        label = f"{look.name} {size(nbytes)}" if share > 22 else look.letter if share > 2 else ""
        title = escape(f"{look.name}: {size(nbytes)}", quote=True)
        spans.append(f'<span style="width:{share:.2f}%;{colors}" title="{title}">{label}</span>')
        names.append(f'<li><i style="{colors}">{look.letter}</i>{look.name} {size(nbytes)}</li>')
    return f'<div class="whole">{"".join(spans)}</div><ul class="legend">{"".join(names)}</ul>'


def table(title: str, heads: Sequence[str], rows: Sequence[tuple[Sequence[int], str, str]], sums: Sequence[int] = ()) -> str:
    """A table of sizes with a bar behind the first, and their places. rows: sizes, place, code."""
    most = max((sizes[0] for sizes, _, _ in rows), default=0) or 1
    body = []
    for sizes, where, code in rows:
        share = 100 * max(sizes[0], 0) / most
        bar = f"background-image:linear-gradient(90deg,rgba(62,160,220,.4) {share:.1f}%,transparent 0)"
        cells = f'<td style="{bar}">{size(sizes[0])}</td>' + "".join(f"<td>{size(nbytes)}</td>" for nbytes in sizes[1:])
        text = f"<code>{escape(code)}</code>" if code else ""
        what = f'<td class="what">{escape(where)}</td><td class="what">{text}</td>'
        body.append(f"<tr>{cells}{what}</tr>")
    if sums:
        cells = "".join(f"<td>{size(nbytes)}</td>" for nbytes in sums)
        body.append(f'<tr class="sum">{cells}<td class="what" colspan="2">together</td></tr>')
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads) + '<th class="what" colspan="2"></th>'
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    inner = f"{caption}<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
    return f'<div class="scroll"><table>{inner}</table></div>'


def text_table(heads: Sequence[str], rows: Sequence[tuple[Sequence[int], str, str]], sums: Sequence[int] = ()) -> str:
    """The same table as text."""
    lines = ["  " + "".join(f"{name:>13}" for name in heads)]
    lines += [f"  {''.join(f'{size(n):>13}' for n in sizes)}  {where}  {code}".rstrip() for sizes, where, code in rows]
    if sums:
        lines.append(f"  {''.join(f'{size(n):>13}' for n in sums)}  together")
    return "\n".join(lines)
