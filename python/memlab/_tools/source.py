"""The text of source lines."""

from __future__ import annotations

import linecache
import re
import sys
from typing import Any

_CELL = re.compile(r"In\[(\d+)\]")


def text_of(file: str | None, line: int | None, known: str | None) -> str | None:
    """The text of a line without its indentation: as recorded, else from the file or the cell; None if not available."""
    if known is not None or file is None or line is None:
        return known
    cell = _CELL.fullmatch(file)
    if cell is not None:
        return _line_of_cell(int(cell.group(1)), line)
    return linecache.getline(file, line).strip() or None


def _line_of_cell(number: int, line: int) -> str | None:
    """A line of a cell that ran in this process."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    cells = getattr(getattr(shell, "history_manager", None), "input_hist_raw", [])
    if number >= len(cells):
        return None
    # IPython omits empty lines at the beginning of a cell.
    lines = cells[number].strip("\n").split("\n")
    return (lines[line - 1].strip() or None) if 0 < line <= len(lines) else None
