"""Recording of this program's memory: `start` and `stop` control it, `tracker`, `watch`, `holders` and `log` return it,
`annotate` names parts.

>>> import memlab
>>> memlab.recording.watch is memlab.watch
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlab._namespace import lazy_names

if TYPE_CHECKING:
    from memlab import (
        annotate,
        holders,
        log,
        start,
        stop,
        tracker,
        watch,
    )

__all__ = [
    "annotate",
    "holders",
    "log",
    "start",
    "stop",
    "tracker",
    "watch",
]

__getattr__, __dir__ = lazy_names(__name__, __all__)
