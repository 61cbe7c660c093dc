"""Limits how much of the program's time repeated searches take.

Run in the namespace of `agent.py`, before the files that search.
"""

import time

_SHARE = 0.01  # Of the time.


class _Throttle:
    """Limits repeated work: `with throttle:` measures a run, and `is_open()` is False until 1 / _SHARE times as long has
    passed since its end."""

    def __init__(self, clock=time.monotonic):
        self.clock = clock
        self.next = 0.0

    def is_open(self):
        return self.clock() >= self.next

    def reopen(self):
        """Allows the next run at once."""
        self.next = 0.0

    def __enter__(self):
        self.begun = self.clock()

    def __exit__(self, *_):  # Also after a signal handler has interrupted the run: the next is not begun at once.
        ended = self.clock()
        self.next = ended + (ended - self.begun) / _SHARE
