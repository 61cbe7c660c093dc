"""Sizes as people write them, and as they read them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_UNITS |= {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def bytes_of(text: str) -> int:
    """Bytes of ``"8GiB"``, ``"512 MiB"``, ``"4G"`` (binary, as in the command) or ``"6GB"`` (decimal).

    Raises ValueError in words.
    """
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*", text)
    if found is None or found[2].upper() not in _UNITS:
        raise ValueError(f"{text!r} is no size: write it like 8GiB, 512MiB or 6GB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def readable(nbytes: float) -> str:
    """``1.5 GiB``: binary units, as PyTorch's messages have them."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} GiB"


def milliseconds(nanoseconds: float) -> str:
    """``12.3 ms``."""
    return f"{nanoseconds / 1e6:.2f} ms"
