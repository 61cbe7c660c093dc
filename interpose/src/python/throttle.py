"""Limits the share of the program's time taken by repeated searches.

Run in the namespace of `agent.py`, before the files that search.
"""

import time

_SHARE = 0.01  # Maximum share of the time.


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

    def __exit__(self, *_):  # Even after a signal handler has interrupted the run, the next does not begin at once.
        ended = self.clock()
        self.next = ended + (ended - self.begun) / _SHARE
