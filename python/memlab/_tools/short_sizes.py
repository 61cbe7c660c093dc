"""Sizes as pytorch_memlab's tables have them: two decimals and one letter."""

from __future__ import annotations


def short_size(nbytes: int) -> str:
    """A size in the largest binary unit that it fills once, B, K, M, G or T.

    >>> short_size(0), short_size(512), short_size(4 * 1024 * 1024)
    ('0.00B', '512.00B', '4.00M')
    """
    for unit, letter in ((1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")):
        if abs(nbytes) >= unit:
            return f"{nbytes / unit:.2f}{letter}"
    return f"{nbytes:.2f}B"
