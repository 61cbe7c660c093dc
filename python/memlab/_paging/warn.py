"""Warnings that name the line of the program that called memlab or the model."""

from __future__ import annotations

import sys
import warnings


def warn(message: str | Warning) -> None:
    """Issues a warning at the innermost frame outside memlab and PyTorch. A text becomes a RuntimeWarning."""
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("memlab", "torch"):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(message, RuntimeWarning, stacklevel=level)
