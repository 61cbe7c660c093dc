"""``memlab.CudaMemorySnapShot`` and ``memlab.CudaHistory``: PyTorch's counters at named moments, as in infinitybatch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from memlab import _native

__all__ = ["CudaHistory", "CudaMemorySnapShot", "HistoryRow", "MemoryDifference"]

# Names in the table are cut to this length.
_NAME_WIDTH = 20
_SIZES = ("total", "reserved", "allocated", "free_cache")


@dataclass(frozen=True)
class MemoryDifference:
    """Difference between two snapshots, in bytes. Negative values are decreases.

    >>> import memlab
    >>> memlab.MemoryDifference(total=0, reserved=2 << 20, allocated=0, free_cache=2 << 20).reserved
    2097152
    """

    total: int  #: The GPU's memory.
    reserved: int  #: Memory that PyTorch's allocator has reserved.
    allocated: int  #: Reserved memory that is in use.
    free_cache: int  #: Reserved memory that is not in use.
    seconds: float = field(default=0.0, compare=False)  #: Seconds between the snapshots.


class CudaMemorySnapShot:
    """A GPU's memory as PyTorch counts it, at one moment.

    Args:
        device_id: the device, as its index, ``"cuda:1"`` or a ``torch.device``. None: PyTorch's current device.
        synchronize: wait for the GPU first.

    Attributes:
        device: the device.
        device_id: its index.
        time: time of the snapshot, in seconds since 1970 (``time.time()``).
        total: the GPU's memory, in bytes.
        reserved: bytes that PyTorch's allocator has reserved (``torch.cuda.memory_reserved``).
        allocated: reserved bytes that are in use (``torch.cuda.memory_allocated``).
        free_cache: reserved bytes that are not in use.

    ``after - before`` is a `MemoryDifference`.

    Raises:
        RuntimeError: the machine has no GPU.
        ValueError: the device is not a GPU.

    >>> import memlab, torch
    >>> not torch.cuda.is_available() or memlab.CudaMemorySnapShot().free_cache >= 0
    True
    """

    def __init__(self, device_id: torch.device | str | int | None = None, synchronize: bool = True) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("CudaMemorySnapShot needs a GPU, and PyTorch finds none")
        self.device_id = _index_of(device_id)
        self.device = torch.device("cuda", self.device_id)
        if synchronize:
            torch.cuda.synchronize(self.device_id)
        self.time = time.time()
        self.total: int = torch.cuda.get_device_properties(self.device_id).total_memory
        self.reserved: int = torch.cuda.memory_reserved(self.device_id)
        self.allocated: int = torch.cuda.memory_allocated(self.device_id)

    @property
    def free_cache(self) -> int:
        """Reserved bytes that are not in use."""
        return self.reserved - self.allocated

    def __sub__(self, before: CudaMemorySnapShot) -> MemoryDifference:
        return MemoryDifference(
            total=self.total - before.total,
            reserved=self.reserved - before.reserved,
            allocated=self.allocated - before.allocated,
            free_cache=self.free_cache - before.free_cache,
            seconds=self.time - before.time,
        )

    def __repr__(self) -> str:
        sizes = (f"{name} {_native.format_size(getattr(self, name))}" for name in _SIZES)
        return f"<CudaMemorySnapShot of cuda:{self.device_id}: {', '.join(sizes)}>"


def _index_of(device: torch.device | str | int | None) -> int:
    if isinstance(device, int):
        return device
    named = torch.device("cuda" if device is None else device)
    if named.type != "cuda":
        raise ValueError(f"{named} is no GPU")
    index: int | None = named.index
    return torch.cuda.current_device() if index is None else index


class HistoryRow(NamedTuple):
    """A snapshot and its name."""

    name: str
    snapshot: CudaMemorySnapShot


class CudaHistory:
    """Snapshots with names, in their order: ``for name, snapshot in history``, or ``history[0].snapshot``.

    ``print(history)`` prints them as a table over time: seconds since the first, and the change since the previous row of
    the same device.

        history = memlab.CudaHistory()
        history.append("before")
        model(batch)
        history.append("after forward")
        print(history)

    >>> import memlab
    >>> history = memlab.CudaHistory()
    >>> print(history)
                         device    seconds       total    reserved   allocated  free_cache      change
    """

    def __init__(self) -> None:
        self._rows: list[HistoryRow] = []

    def append(
        self, name: str, device_id: torch.device | str | int | None = None, synchronize: bool = True
    ) -> CudaMemorySnapShot:
        """Takes a snapshot (see `CudaMemorySnapShot`), and returns it."""
        snapshot = CudaMemorySnapShot(device_id, synchronize)
        self._rows.append(HistoryRow(name, snapshot))
        return snapshot

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> HistoryRow:
        return self._rows[index]

    def __iter__(self) -> Iterator[HistoryRow]:
        return iter(self._rows)

    def difference(self, first: str, last: str) -> MemoryDifference:
        """Returns the difference between the latest snapshots of two names.

        Raises:
            KeyError: the name does not exist.
        """
        rows = dict(self._rows)
        return rows[last] - rows[first]

    def __str__(self) -> str:
        columns = ["seconds", *_SIZES, "change"]
        widths = [10, *[11] * (len(columns) - 1)]
        head = (f"{name:>{width}}" for name, width in zip(columns, widths, strict=True))
        lines = [" ".join([f"{'':{_NAME_WIDTH}}", "device", *head])]
        before: dict[int, CudaMemorySnapShot] = {}
        for name, snapshot in self._rows:
            seconds = snapshot.time - self._rows[0].snapshot.time
            sizes = (_native.format_size(getattr(snapshot, column)) for column in _SIZES)
            earlier = before.get(snapshot.device_id)
            change = "" if earlier is None else _signed(snapshot.allocated - earlier.allocated)
            before[snapshot.device_id] = snapshot
            cells = [f"{seconds:.3f}", *sizes, change]
            row = (f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
            lines.append(" ".join([f"{name[:_NAME_WIDTH]:{_NAME_WIDTH}}", f"{snapshot.device_id:>6}", *row]))
        return "\n".join(lines)


def _signed(size: int) -> str:
    return ("-" if size < 0 else "+") + _native.format_size(abs(size))
