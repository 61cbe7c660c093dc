"""Waits for a state, so that tests need not rely on time."""

import time

# Longer than any machine needs: only a hang fails.
HANG_SECONDS = 600


def wait_until(condition):
    """Polls until `condition()` holds."""
    give_up = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < give_up, "the state was not reached"
        time.sleep(0.01)
