"""Sizes as people type and read them: the grammar of the command, implemented in the native module."""

from __future__ import annotations

from memlab._native import format_size, parse_size


def bytes_of(text: str) -> int:
    """Bytes of a size with its unit: ``"8GiB"`` is 2³³, ``"8GB"`` is 8·10⁹; case does not matter.

    Raises:
        ValueError: the text is not a size, has no unit, or has a unit that may be GiB or GB (``"8G"``).
    """
    return parse_size(text)


def readable(nbytes: float) -> str:
    """``1.50 GiB``: three significant digits in a binary unit, as in PyTorch's messages."""
    return format_size(int(nbytes))


def milliseconds(nanoseconds: float) -> str:
    """``12.34 ms``."""
    return f"{nanoseconds / 1e6:.2f} ms"
