"""`memlab.tracker`: the GPU memory now and at the peak, by line, layer and category, as numbers.

The figures come from live books in this process: the same sums as in the dashboard and the report.
"""

from __future__ import annotations

from typing import NamedTuple

from memlab import _native
from memlab._tools import devices
from memlab._tools.devices import Device
from memlab._tools.rows import Rows
from memlab._tools.source import text_of
from memlab.process_recording import ensure_started, why_not


class Totals(NamedTuple):
    """A device's memory in bytes."""

    allocated: int
    reserved: int
    used: int
    """Use of the whole device, including driver memory of libraries, the CUDA context and other processes."""
    peak_allocated: int
    peak_reserved: int


class Block(NamedTuple):
    """A live block of PyTorch's allocator."""

    address: int
    nbytes: int
    category: str
    file: str | None
    line: int | None
    function: str | None
    layer: str | None
    phase: str
    """forward, backward, optimizer or other."""


class LineMemory(NamedTuple):
    """Memory allocated by a line of the program, in bytes. `file` is None for memory without a Python line."""

    file: str | None
    line: int | None
    function: str | None
    code: str | None
    live: int
    at_peak: int
    """Live at the device's peak."""
    peak: int
    """Maximum held by the line at once."""
    allocated: int
    allocations: int
    blocks: int
    backward: int
    """Part of `live` that backward allocated for operations of the line."""


class LayerMemory(NamedTuple):
    """Memory held by a layer, in bytes, without the layers inside it. `name` is None for memory outside any layer."""

    root: str | None
    name: str | None
    kind: str | None
    live: int
    at_peak: int
    parameters: int
    """As the four that follow: the maximum at once."""
    gradients: int
    optimizer_state: int
    buffers: int
    activations: int


class CategoryMemory(NamedTuple):
    """Memory of a category, in bytes."""

    category: str
    live: int
    at_peak: int


class Peak(NamedTuple):
    """The moment with the most allocated memory, in bytes and seconds since the recording began."""

    allocated: int
    reserved: int
    used: int
    time_s: float
    step: int
    """Number of completed optimizer steps."""


class Mark(NamedTuple):
    """A moment named by the program."""

    name: str
    time_s: float
    device: int
    allocated: int
    reserved: int
    peak: int
    """Maximum of allocated bytes until then, since the last `reset_peak`."""


class Tracker:
    """The memory of this process. The first use starts the recording (`memlab.start`) if the program is not recorded yet.

    Sizes are bytes. `device` is a number, ``"cuda:1"`` or a `torch.device`; None: torch's current device. Without CUDA every
    method returns zeros or an empty list, and a line on stderr gives the reason.

    >>> import memlab
    >>> memlab.tracker.totals().allocated == sum(block.nbytes for block in memlab.tracker.live_blocks())
    True
    """

    def __init__(self) -> None:
        self._marks: list[Mark] = []

    def __repr__(self) -> str:
        if not self.active:  # Printing does not start a recording.
            return f"<memlab.tracker: no recording: {self.why_not or 'call memlab.start()'}>"
        size, totals = _native.format_size, self.totals()
        return (
            f"<memlab.tracker: {size(totals.allocated)} allocated, {size(totals.reserved)} reserved, "
            f"{size(totals.used)} in use; peak {size(totals.peak_allocated)} allocated>"
        )

    @property
    def active(self) -> bool:
        """True if books are kept.

        >>> import memlab
        >>> memlab.tracker.active in (True, False)
        True
        """
        return _native.books_active()

    @property
    def why_not(self) -> str | None:
        """The reason why nothing is recorded; None: it is, or no tool was used yet.

        >>> import memlab
        >>> "empty results" in (memlab.tracker.why_not or "empty results")
        True
        """
        return why_not()

    @property
    def lost_events(self) -> int:
        """Number of missing events. Events are dropped if they come faster than the recording can be kept below
        MEMLAB_TRACE_MAX. 0: every figure is exact.

        >>> import memlab
        >>> memlab.tracker.lost_events
        0
        """
        return _native.lost_events()

    def totals(self, device: Device = None) -> Totals:
        """The device's memory now, and its peaks since the last `reset_peak`. Equal to `torch.cuda.memory_allocated()` and
        `torch.cuda.memory_reserved()`, to the byte.

        >>> import memlab
        >>> import torch
        >>> memlab.tracker.totals().allocated == torch.cuda.memory_allocated()
        True
        """
        ensure_started()
        return Totals(*_native.totals(devices.index_of(device)))

    def live_blocks(self, device: Device = None) -> list[Block]:
        """Every live block of PyTorch's allocator, by address.

        >>> import memlab
        >>> [block.line for block in memlab.tracker.live_blocks() if block.nbytes > 1 << 50]
        []
        """
        self._ask()
        return Rows(Block(*row) for row in _native.blocks(devices.index_of(device)))

    def by_line(self, device: Device = None) -> list[LineMemory]:
        """Memory held by each line of the program, the largest first. The rows sum to the allocated memory.

        >>> import memlab
        >>> sum(line.live for line in memlab.tracker.by_line()) == memlab.tracker.totals().allocated
        True
        """
        ensure_started()
        rows = _native.lines(devices.index_of(device))
        return Rows(LineMemory(*row[:3], text_of(*row[:2], row[3]), *row[4:]) for row in rows)

    def by_layer(self, device: Device = None) -> list[LayerMemory]:
        """Memory held by each layer, the largest first. The rows sum to the allocated memory.

        >>> import memlab
        >>> sum(layer.live for layer in memlab.tracker.by_layer()) == memlab.tracker.totals().allocated
        True
        """
        self._ask()
        return Rows(LayerMemory(*row) for row in _native.layers(devices.index_of(device)))

    def by_category(self, device: Device = None) -> list[CategoryMemory]:
        """Memory by category: parameters, gradients, optimizer state, activations and so on. Then memory outside PyTorch's
        blocks: library workspaces, cached memory, the CUDA context, other processes. The rows sum to the device's use.

        >>> import memlab
        >>> sum(row.live for row in memlab.tracker.by_category()) == memlab.tracker.totals().used
        True
        """
        self._ask()
        return Rows(CategoryMemory(*row) for row in _native.categories(devices.index_of(device)))

    def peak(self, device: Device = None) -> Peak:
        """The moment with the most allocated memory, since the last `reset_peak`.

        >>> import memlab
        >>> memlab.tracker.peak().allocated >= memlab.tracker.totals().allocated
        True
        """
        ensure_started()
        return Peak(*_native.peak(devices.index_of(device)))

    def reset_peak(self, device: Device = None) -> None:
        """Resets the peak to the current value. Does not affect `torch.cuda.max_memory_allocated()`.

        >>> import memlab
        >>> memlab.tracker.reset_peak()
        >>> memlab.tracker.peak().allocated == memlab.tracker.totals().allocated
        True
        """
        ensure_started()
        _native.reset_peak(devices.index_of(device))

    def mark(self, name: str, device: Device = None) -> Mark:
        """Records this moment under a name, in `marks`.

        >>> import memlab
        >>> memlab.tracker.mark("loaded").name
        'loaded'
        """
        totals, index = self.totals(device), devices.index_of(device)
        mark = Mark(name, _native.latest_time(), index, totals.allocated, totals.reserved, totals.peak_allocated)
        self._marks.append(mark)
        return mark

    @property
    def marks(self) -> list[Mark]:
        """The moments named by `mark`, in order.

        >>> import memlab
        >>> memlab.tracker.clear_marks()
        >>> memlab.tracker.mark("loaded") in memlab.tracker.marks
        True
        """
        return list(self._marks)

    def clear_marks(self) -> None:
        """Forgets the marks.

        >>> import memlab
        >>> memlab.tracker.clear_marks()
        >>> memlab.tracker.marks
        []
        """
        self._marks.clear()

    def _ask(self) -> None:
        """Requests the owners of memory. The interpreter answers between two bytecodes of its main thread."""
        ensure_started()
        _native.ask_for_tags()
        for _ in range(3):
            pass


tracker = Tracker()
