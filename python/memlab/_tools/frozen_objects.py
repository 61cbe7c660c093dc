"""Objects that heap searches do not find."""

from __future__ import annotations

import gc
import sys

from memlab._tools.messages import warn_once


def warn_of_frozen_objects() -> None:
    """Reports once that the garbage collector does not list objects frozen by `gc.freeze()`."""
    # CPython 3.12 freezes some objects itself, before it imports anything.
    torch = sys.modules.get("torch")
    if gc.get_freeze_count() and not any(thing is torch for thing in gc.get_objects()):
        warn_once(
            "gc.freeze() hides earlier tensors from memlab.MemReporter and Courtesy: call gc.unfreeze() before them, and "
            "gc.freeze() after"
        )
