"""Messages to the user, on stderr."""

from __future__ import annotations

import sys

_said: set[str] = set()


def say_once(what: str) -> None:
    """Writes one line to stderr, once per process."""
    if what not in _said:
        _said.add(what)
        sys.stderr.write(f"memlab: {what}\n")
