"""The text of source lines."""

from __future__ import annotations

import linecache


def text_of(file: str | None, line: int | None, known: str | None) -> str | None:
    """The text of a line without its indentation: as recorded, else from the file; None where there is none."""
    if known is not None or file is None or line is None:
        return known
    return linecache.getline(file, line).strip() or None
