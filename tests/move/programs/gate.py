"""Detects threads that memlab blocks while memory is offloaded."""

import time
from pathlib import Path

FUTEX, FUTEX_WAIT_PRIVATE = "202", "0x80"


def waits(thread):
    """Returns True once the thread sleeps in libmemlab.so, and False if it ends."""
    while thread.is_alive():
        if is_asleep(thread.native_id):
            return True
        time.sleep(0.001)
    return False


def is_asleep(thread_id):
    """Recognises the futex call of memlab's gate and Rust's locks: value 1, no timeout. CPython's locks use another call."""
    try:
        call, _, operation, value, timeout, *_ = Path(f"/proc/self/task/{thread_id}/syscall").read_text().split()
    except (ValueError, FileNotFoundError, ProcessLookupError):  # The thread runs, or has ended.
        return False
    return (call, operation, value, timeout) == (FUTEX, FUTEX_WAIT_PRIVATE, "0x1", "0x0")
