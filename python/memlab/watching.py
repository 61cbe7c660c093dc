"""`memlab.watch`: the effect of one block of code on GPU memory."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from html import escape
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from memlab import _native
from memlab._tools import devices
from memlab._tools.devices import Device
from memlab._tools.rows import Rows
from memlab._tools.source import text_of
from memlab.process_recording import ensure_started

_SHOWN_LINES = 10

_Function = TypeVar("_Function", bound=Callable[..., Any])


class WatchedLine(NamedTuple):
    """Memory of a line in a watched block, in bytes. `file` is None for memory without a Python line."""

    file: str | None
    line: int | None
    function: str | None
    code: str | None
    at_start: int
    at_peak: int
    """Held at the peak of the block; all lines sum to the peak."""
    at_end: int
    allocated: int
    """Allocated in the block, whether freed since or not."""
    kept: int
    """Allocated in the block and live at its end."""


class WatchedLayer(NamedTuple):
    """Memory held by a layer in a watched block, in bytes, without the layers inside it."""

    root: str | None
    name: str | None
    kind: str | None
    at_start: int
    at_peak: int
    at_end: int


class WatchedCategory(NamedTuple):
    """Memory of a category in a watched block, in bytes."""

    category: str
    at_peak: int
    at_end: int


class TimelinePoint(NamedTuple):
    """The memory from a moment on, in nanoseconds since the block began and bytes allocated; `reserved`: the maximum."""

    time: int
    least: int
    most: int
    last: int
    reserved: int


class Timeline(NamedTuple):
    """Memory over time in a watched block, in nanoseconds."""

    duration: int
    peak_time: int
    """Time of the peak, since the block began."""
    width: int
    """Duration of a point. Between its end and the next point, nothing changed."""
    points: list[TimelinePoint]


class watch:
    """Measures a block of code: its peak, the memory it keeps, and its lines and layers. A context manager and a decorator.

    Watches nest. They affect neither the tracker's peak nor `torch.cuda.max_memory_allocated()`. Until the block has ended,
    the figures are the current ones. The decorator measures and prints each call; `last` is the watch of the last call.

    >>> import memlab
    >>> with memlab.watch() as watched:
    ...     pass
    >>> watched.kept
    0
    """

    _id = 0  # A class attribute, so that `__del__` finds it if `__init__` raised.

    def __init__(self, device: Device = None) -> None:
        self._wanted = device
        self.device = 0
        self.last: watch | None = None

    def __enter__(self) -> watch:
        self._drop()
        if ensure_started():
            self.device = devices.index_of(self._wanted)
            self._id = _native.watch_begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._id:
            _native.watch_end(self._id)

    def __call__(self, function: _Function) -> _Function:
        @functools.wraps(function)
        def watched(*arguments: Any, **named: Any) -> Any:
            with watch(self._wanted) as self.last:
                result = function(*arguments, **named)
            sys.stdout.write(f"{function.__qualname__}: {self.last}\n")
            return result

        return watched  # type: ignore[return-value]

    def __del__(self) -> None:
        self._drop()

    def _drop(self, drop: Callable[[int], None] = _native.watch_drop) -> None:
        # Kept as a default argument, since the interpreter clears the names of modules at its end.
        if self._id:
            drop(self._id)
            self._id = 0

    def _figures(self) -> tuple[int, int, int, int, bool]:
        return _native.watch_figures(self._id, self.device)

    @property
    def start(self) -> int:
        """Bytes allocated when the block began.

        >>> import memlab
        >>> with memlab.watch() as watched:
        ...     pass
        >>> watched.start == watched.end
        True
        """
        return self._figures()[0]

    @property
    def peak(self) -> int:
        """Maximum bytes allocated at once in the block: `torch.cuda.max_memory_allocated()`, if reset at its start.

        >>> import memlab
        >>> with memlab.watch() as watched:
        ...     pass
        >>> watched.peak == watched.start
        True
        """
        return self._figures()[1]

    @property
    def end(self) -> int:
        """Bytes allocated when the block ended.

        >>> import memlab
        >>> with memlab.watch() as watched:
        ...     pass
        >>> watched.end == memlab.tracker.totals().allocated
        True
        """
        return self._figures()[2]

    @property
    def growth(self) -> int:
        """The peak minus the start.

        >>> import memlab
        >>> with memlab.watch() as watched:
        ...     pass
        >>> watched.growth
        0
        """
        start, peak, *_ = self._figures()
        return peak - start

    @property
    def kept(self) -> int:
        """The end minus the start; negative if the block freed more than it kept.

        >>> import memlab
        >>> with memlab.watch() as watched:
        ...     pass
        >>> watched.kept
        0
        """
        start, _, end, *_ = self._figures()
        return end - start

    @property
    def peak_reserved(self) -> int:
        """Maximum bytes that PyTorch's allocator reserved in the block.

        >>> import memlab
        >>> with memlab.watch() as watched:
        ...     pass
        >>> watched.peak_reserved >= watched.peak
        True
        """
        return self._figures()[3]

    @property
    def has_gap(self) -> bool:
        """True if events are missing: the figures end at the first missing one.

        >>> import memlab
        >>> with memlab.watch() as watched:
        ...     pass
        >>> watched.has_gap
        False
        """
        return self._figures()[4]

    @property
    def lines(self) -> list[WatchedLine]:
        """Memory of each line, the largest at the peak first.

        >>> import memlab
        >>> with memlab.watch() as watched:
        ...     pass
        >>> sum(line.at_peak for line in watched.lines) == watched.peak
        True
        """
        rows = _native.watch_lines(self._id, self.device)
        return Rows(WatchedLine(*row[:3], text_of(*row[:2], row[3]), *row[4:]) for row in rows)

    @property
    def layers(self) -> list[WatchedLayer]:
        """Memory held by each layer, the largest at the peak first.

        >>> import memlab
        >>> with memlab.watch() as watched:
        ...     pass
        >>> sum(layer.at_peak for layer in watched.layers) == watched.peak
        True
        """
        return Rows(WatchedLayer(*row) for row in _native.watch_layers(self._id, self.device))

    @property
    def categories(self) -> list[WatchedCategory]:
        """Memory by category. At the peak the rows sum to the device's use at that time.

        >>> import memlab
        >>> with memlab.watch() as watched:
        ...     pass
        >>> all(row.at_peak >= 0 for row in watched.categories)
        True
        """
        return Rows(WatchedCategory(*row) for row in _native.watch_categories(self._id, self.device))

    @property
    def timeline(self) -> Timeline:
        """Memory over time in the block.

        >>> import memlab
        >>> with memlab.watch() as watched:
        ...     pass
        >>> all(point.most <= watched.peak for point in watched.timeline.points)
        True
        """
        duration, peak_time, width, points = _native.watch_timeline(self._id, self.device)
        return Timeline(duration, peak_time, width, [TimelinePoint(*point) for point in points])

    def _summary(self) -> str:
        size = _native.format_size
        kept, start = self.kept, self.start
        sign = "-" if kept < 0 else "+"
        return (
            f"peak {size(self.peak)} ({size(self.growth)} above the start), "
            f"kept {sign}{size(abs(kept))}, start {size(start)}"
        )

    def __repr__(self) -> str:
        return f"<memlab.watch: {self._summary() if self._id else 'no block was measured'}>"

    def _repr_html_(self) -> str:
        if not self._id:
            return f"<p>{escape(repr(self))}</p>"
        lines = Rows(self.lines[:_SHOWN_LINES])
        return f"<p><b>{escape(self._summary())}</b></p>{lines._repr_html_()}"

    def __str__(self) -> str:
        size = _native.format_size
        rows = [self._summary()]
        for line in self.lines[:_SHOWN_LINES]:
            where = f"{line.file}:{line.line}" if line.file else "(no Python line)"
            rows.append(
                f"  {size(line.at_peak):>10} at the peak  {size(line.kept):>10} kept  {where}"
                f"{'  ' + line.code if line.code else ''}"
            )
        return "\n".join(rows)
