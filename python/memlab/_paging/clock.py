"""Durations of forwards, measured without waiting for them."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch


class Clock:
    """A context around a forward. On a GPU it records events on the caller's stream, which `last_ns` reads."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.nanoseconds = 0
        self.last_pair: tuple[Any, Any] | None = None
        self.thread_state = threading.local()

    def __enter__(self) -> None:
        if self.device.type == "cpu":
            self.thread_state.began = time.perf_counter_ns()
            return
        self.thread_state.began = None
        if not torch.cuda.is_current_stream_capturing():
            # Two alternating pairs per thread, so that `last_ns` can read one while the other is recorded.
            pairs = self.thread_state.__dict__.setdefault("pairs", [_pair(), _pair()])
            pairs.reverse()
            self.thread_state.began = pairs[0]
            pairs[0][0].record(torch.cuda.current_stream(self.device))

    def __exit__(self, *_: object) -> None:
        began = self.thread_state.began
        if self.device.type == "cpu":
            self.nanoseconds = time.perf_counter_ns() - began
        elif began is not None:
            began[1].record(torch.cuda.current_stream(self.device))
            self.last_pair = began

    def last_ns(self) -> int:
        """Returns the nanoseconds of the last completed forward. Waits for it."""
        if self.last_pair is not None:
            first, last = self.last_pair
            last.synchronize()
            self.nanoseconds = int(first.elapsed_time(last) * 1e6)
        return self.nanoseconds


def _pair() -> tuple[Any, Any]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
