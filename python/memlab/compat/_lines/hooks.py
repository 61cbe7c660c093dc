"""Makes Python call the marks of line profiles before each line of profiled functions, without disturbing other tracers.

From CPython 3.12 on, it uses `sys.monitoring`, with events for the profiled code only, on every thread: other code runs as
fast as before. Older versions use `sys.settrace`, also on threads that start later, unless a debugger or a coverage tool has
set its own.
"""

from __future__ import annotations

import sys
import threading
from types import CodeType
from typing import Any

from memlab import _native
from memlab._tools.messages import warn_once

# PyTorch's counters that cannot be computed from events. The native module keeps them in this order.
SAMPLED = ("requested_bytes", "inactive_split", "inactive_split_bytes")
POOLS = ("all", "large_pool", "small_pool")
METRICS = ("current", "peak", "allocated", "freed")


def _sample(device: int) -> list[tuple[int, ...]]:
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if not hasattr(cuda, "is_initialized") or not cuda.is_initialized():  # It may be being imported.
        return [(0,) * len(METRICS)] * (len(SAMPLED) * len(POOLS))
    # `memory_stats` returns the same, but takes several times as long.
    stats = cuda.memory_stats_as_nested_dict(device)
    return [tuple(stats[name][pool][metric] for metric in METRICS) for name in SAMPLED for pool in POOLS]


marks = _native.LineMarks(_sample)
_lock = threading.RLock()
_counts: dict[CodeType, int] = {}


class _Monitoring:
    """`sys.monitoring`, with one of the tool numbers that no standard kind of tool uses."""

    def __init__(self) -> None:
        # CPython before 3.12 lacks the module.
        self.api: Any = getattr(sys, "monitoring", None)
        self.tool: int | None = None

    def take(self) -> bool:
        if self.tool is not None:
            return True
        for tool in (4, 3):
            try:
                self.api.use_tool_id(tool, "memlab")
            except ValueError:
                continue
            self.tool = tool
            events = self.api.events
            for event, callback in (
                (events.LINE, marks.on_line),
                (events.PY_START, marks.on_start),
                (events.PY_RESUME, marks.on_resume),
                (events.PY_RETURN, marks.on_leave),
                (events.PY_YIELD, marks.on_leave),
                (events.PY_UNWIND, marks.on_leave),
                (events.PY_THROW, marks.on_throw),
            ):
                self.api.register_callback(tool, event, callback)
            # These two cannot be switched on for single functions. They cost time only when an exception passes.
            self.api.set_events(tool, events.PY_UNWIND | events.PY_THROW)
            return True
        return False

    def add(self, code: CodeType) -> bool:
        if not self.take():
            return False
        events = self.api.events
        wanted = events.LINE | events.PY_START | events.PY_RESUME | events.PY_RETURN | events.PY_YIELD
        self.api.set_local_events(self.tool, code, wanted)
        return True

    def remove(self, code: CodeType) -> None:
        if self.tool is None:
            return
        self.api.set_local_events(self.tool, code, 0)
        if not _counts:
            self.api.set_events(self.tool, 0)
            self.api.free_tool_id(self.tool)
            self.tool = None


class _Tracing:
    """`sys.settrace`."""

    def add(self, code: CodeType) -> bool:
        current: Any = sys.gettrace()
        if current is not None and current is not marks:
            return False
        sys.settrace(marks)
        if threading.gettrace() is None:
            threading.settrace(marks)
        return True

    def remove(self, code: CodeType) -> None:
        if _counts:
            return
        current: Any = sys.gettrace()
        if current is marks:
            sys.settrace(None)
        current = threading.gettrace()
        if current is marks:
            threading.settrace(None)  # type: ignore[arg-type]


_hooks: _Monitoring | _Tracing = _Monitoring() if hasattr(sys, "monitoring") else _Tracing()


def add(code: CodeType, first_line: int, profile: int, function: int) -> None:
    """Marks the lines of `code` for a function of a profile."""
    with _lock:
        marks.register(code, first_line, profile, function)
        _counts[code] = _counts.get(code, 0) + 1
        if not _hooks.add(code):
            warn_once("another tool traces this program: the line profiler shows figures only for lines that allocate")


def remove(code: CodeType, profile: int) -> None:
    """Undoes `add`."""
    with _lock:
        marks.unregister(code, profile)
        _counts[code] -= 1
        if _counts[code] == 0:
            del _counts[code]
            _hooks.remove(code)
