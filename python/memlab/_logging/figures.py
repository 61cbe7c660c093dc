"""The figures of the interval between two logs."""

from __future__ import annotations

import os

from memlab import _native
from memlab._tools import devices
from memlab._tools.devices import Device
from memlab.process_recording import ensure_started


class Interval:
    """The time since the last `next`, on one device; before the first one, since the recording began.

    A forked child, and a restarted recording, begin anew.
    """

    def __init__(self, device: Device = None) -> None:
        self._device = device
        self._watch = 0
        self._pid = 0
        self._seen: set[str] = set()

    def begin(self) -> None:
        """Begins the interval."""
        if ensure_started():
            self._go_on(_native.watch_begin())

    def next(self) -> dict[str, int]:
        """The figures of the interval, in bytes. Begins the next interval. Empty without a recording."""
        if not ensure_started():
            return {}
        _native.ask_for_tags()
        for _ in range(3):  # The interpreter answers between two bytecodes.
            pass
        index = devices.index_of(self._device)
        # Begun before the last one is read, so that no events fall between them.
        following = _native.watch_begin()
        figures = self._figures(index)
        self._go_on(following)
        return figures

    def _figures(self, index: int) -> dict[str, int]:
        allocated, reserved, used, peak, peak_reserved = _native.totals(index)
        start = 0
        categories = _native.categories(index)
        if self._watch and self._pid == os.getpid() and (rows := _native.watch_categories(self._watch, index)):
            _native.watch_end(self._watch)
            start, peak, allocated, peak_reserved, _ = _native.watch_figures(self._watch, index)
            categories = [(category, at_end, at_peak) for category, at_peak, at_end in rows]
        # A category that has disappeared is logged as 0: its curve would otherwise stay at the last value.
        self._seen |= {category for category, _, nbytes in categories if nbytes}
        at_peak = {f"at_peak/{category}": nbytes for category, _, nbytes in categories if category in self._seen}
        return {
            "peak": peak,
            "growth": peak - start,
            "kept": allocated - start,
            "allocated": allocated,
            "reserved": reserved,
            "peak_reserved": peak_reserved,
            "used": used,
            **at_peak,
        }

    def _go_on(self, watch: int) -> None:
        if self._watch and self._pid == os.getpid():
            _native.watch_drop(self._watch)
        self._watch, self._pid = watch, os.getpid()
