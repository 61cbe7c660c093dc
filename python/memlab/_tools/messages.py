"""Messages to the user, on stderr."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

_written: set[str] = set()


def warn_once(what: str) -> None:
    """Writes one line to stderr, once per process."""
    if what not in _written:
        _written.add(what)
        sys.stderr.write(f"memlab: {what}\n")


@contextlib.contextmanager
def warn_if_slow(what: str, seconds: float) -> Iterator[None]:
    """Writes one line to stderr if the block still runs after `seconds`, times `MEMLAB_PATIENCE`."""
    timer = threading.Timer(patient(seconds), sys.stderr.write, (f"memlab: {what}\n",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def patient(seconds: float) -> float:
    """Multiplies seconds by `MEMLAB_PATIENCE`: on an overloaded machine, everything takes longer."""
    try:
        return seconds * float(os.environ.get("MEMLAB_PATIENCE", "1"))
    except ValueError:
        return seconds
