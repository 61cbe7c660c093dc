"""The memory of one test, on all devices: `memlab.watch`, without the memory kept by fixtures of wider scope."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from memlab import _native
from memlab._pytest.limits import Limit
from memlab._pytest.summary import Place, Row
from memlab.tracking import tracker
from memlab.watching import watch


class Window:
    """Measures from its creation to `end`."""

    def __init__(self, root: Path, leaks: bool) -> None:
        self._root = root
        self._leaks = leaks
        self._left_out: Counter[int] = Counter()  # By device: bytes allocated meanwhile for other tests too.
        if leaks:
            gc.collect()  # Frees garbage of earlier tests, which could be collected within the window.
        self._watch = watch()
        # The summary prints the reason for a missing measurement once for all tests.
        with contextlib.redirect_stderr(io.StringIO()):
            self._watch.__enter__()
        # Older versions of PyTorch keep cuBLAS' workspaces from their first use on. They are no leaks of a test.
        self._workspaces = self._workspace_bytes()

    def end(self, limit: Limit | None) -> None:
        """Ends the measurement; with a limit on leaks, collects garbage first if more seems to be left."""
        if limit is not None and any(self.leaked(device) > limit.nbytes for device in self.devices(limit.device)):
            gc.collect()
        self._watch.__exit__(None, None, None)
        for device, nbytes in self._workspace_bytes().items():
            self._left_out[device] += nbytes - self._workspaces[device]

    @property
    def has_gap(self) -> bool:
        return self._watch.has_gap

    def devices(self, only: int | None = None) -> list[int]:
        """The devices that PyTorch uses, or only the given one."""
        torch: Any = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return []
        return [device for device in range(torch.cuda.device_count()) if only in (None, device)]

    def allocated(self) -> list[int]:
        """Bytes allocated now, by device."""
        return [tracker.totals(device).allocated for device in self.devices()]

    def leave_out(self, before: list[int]) -> None:
        """Excludes memory allocated since `before` that is still live."""
        for device, nbytes in enumerate(self.allocated()):
            self._left_out[device] += nbytes - (before[device] if device < len(before) else 0)

    def peak(self, device: int) -> int:
        """Peak bytes allocated beyond the start."""
        return self._on(device).growth

    def leaked(self, device: int) -> int:
        """Bytes allocated at the end beyond the start."""
        return self._on(device).kept - self._left_out[device]

    def lines_at_peak(self, device: int) -> list[Place]:
        """Memory of lines at the peak beyond the start, the largest first."""
        lines = self._on(device).lines
        return _largest([Place(line.at_peak - line.at_start, self._line(line), line.code) for line in lines])

    def lines_left(self, device: int) -> list[Place]:
        """Memory of lines at the end beyond the start, the largest first."""
        lines = self._on(device).lines
        return _largest([Place(line.at_end - line.at_start, self._line(line), line.code) for line in lines])

    def layers_at_peak(self, device: int) -> list[Place]:
        """Memory of layers at the peak beyond the start, the largest first."""
        layers = [layer for layer in self._on(device).layers if layer.name is not None]
        return _largest(
            [Place(layer.at_peak - layer.at_start, layer.name or layer.root or "", layer.kind) for layer in layers]
        )

    def row(self, limited: bool) -> Row:
        """The test's figures, from the device with its highest peak."""
        devices = self.devices()
        most = max(devices, key=self.peak, default=0)
        largest = self.lines_at_peak(most)[:1] if devices else []
        return {
            "peak": self.peak(most) if devices else 0,
            "kept": sum(self.leaked(device) for device in devices),
            "line": largest[0].where if largest else "",
            "line_bytes": largest[0].nbytes if largest else 0,
            "why_not": tracker.why_not,
            "limited": limited,
        }

    def _on(self, device: int) -> watch:
        self._watch.device = device
        return self._watch

    def _line(self, line: Any) -> str:
        if line.file is None:
            return "no Python line"
        path = os.path.relpath(line.file, self._root)
        return f"{line.file if path.startswith('..') else path}:{line.line} {line.function or ''}".rstrip()

    def _workspace_bytes(self) -> Counter[int]:
        found: Counter[int] = Counter()
        if self._leaks and tracker.active:
            for device in self.devices():
                # Not `tracker.live_blocks`, which first asks PyTorch for the owners of the other blocks.
                found[device] = sum(nbytes for _, nbytes, category, *_ in _native.blocks(device) if category == "workspace")
        return found


def _largest(places: list[Place]) -> list[Place]:
    return sorted((place for place in places if place.nbytes > 0), key=lambda place: -place.nbytes)
