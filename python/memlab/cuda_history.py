"""``memlab.CudaMemorySnapShot`` and ``memlab.CudaHistory``: PyTorch's counters at named moments, as in infinitybatch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch

from memlab import _native

__all__ = ["CudaHistory", "CudaMemorySnapShot", "MemoryDifference"]

# Names in the table are cut to this length.
_NAME_WIDTH = 20


@dataclass(frozen=True)
class MemoryDifference:
    """What changed between two snapshots, in bytes; negative: less.

    >>> import memlab
    >>> memlab.MemoryDifference(total=0, reserved=2 << 20, allocated=0, free_cache=2 << 20).reserved
    2097152
    """

    total: int  #: The GPU's memory.
    reserved: int  #: What PyTorch's allocator has taken of it.
    allocated: int  #: What of that is in use.
    free_cache: int  #: What of that is not.


class CudaMemorySnapShot:
    """A GPU's memory as PyTorch counts it, at one moment.

    Args:
        device_id: the device's index. None: PyTorch's current device.
        synchronize: wait for the GPU first.

    Attributes:
        device_id: the device's index.
        total: the GPU's memory, in bytes.
        reserved: what PyTorch's allocator has taken of it (``torch.cuda.memory_reserved``), in bytes.
        allocated: what of that is in use (``torch.cuda.memory_allocated``), in bytes.
        free_cache: what of that is not, in bytes.

    ``after - before`` is a `MemoryDifference`.

    Raises:
        RuntimeError: there is no GPU.

    >>> import memlab, torch
    >>> not torch.cuda.is_available() or memlab.CudaMemorySnapShot().free_cache >= 0
    True
    """

    def __init__(self, device_id: int | None = None, synchronize: bool = True) -> None:
        if not torch.cuda.is_available():
            raise RuntimeError("CudaMemorySnapShot needs a GPU, and PyTorch finds none")
        self.device_id = torch.cuda.current_device() if device_id is None else device_id
        if synchronize:
            torch.cuda.synchronize(self.device_id)
        self.total: int = torch.cuda.get_device_properties(self.device_id).total_memory
        self.reserved: int = torch.cuda.memory_reserved(self.device_id)
        self.allocated: int = torch.cuda.memory_allocated(self.device_id)

    @property
    def free_cache(self) -> int:
        """What is reserved and not in use, in bytes."""
        return self.reserved - self.allocated

    def __sub__(self, before: CudaMemorySnapShot) -> MemoryDifference:
        names = (field.name for field in fields(MemoryDifference))
        return MemoryDifference(*(getattr(self, name) - getattr(before, name) for name in names))

    def __repr__(self) -> str:
        sizes = (f"{field.name} {_native.format_size(getattr(self, field.name))}" for field in fields(MemoryDifference))
        return f"<CudaMemorySnapShot of cuda:{self.device_id}: {', '.join(sizes)}>"


class CudaHistory:
    """Snapshots with names, in their order. ``print(history)`` is a table, with what changed since the row before.

        history = memlab.CudaHistory()
        history.append("before")
        model(batch)
        history.append("after forward")
        print(history)

    >>> import memlab
    >>> history = memlab.CudaHistory()
    >>> print(history)
                         device       total    reserved   allocated  free_cache      change
    """

    def __init__(self) -> None:
        self._rows: list[tuple[str, CudaMemorySnapShot]] = []

    def append(self, name: str, device_id: int | None = None, synchronize: bool = True) -> CudaMemorySnapShot:
        """Takes a snapshot (see `CudaMemorySnapShot`), and returns it."""
        snapshot = CudaMemorySnapShot(device_id, synchronize)
        self._rows.append((name, snapshot))
        return snapshot

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> CudaMemorySnapShot:
        return self._rows[index][1]

    def __iter__(self) -> Iterator[tuple[str, CudaMemorySnapShot]]:
        return iter(self._rows)

    def difference(self, first: str, last: str) -> MemoryDifference:
        """What changed between two names, each where it was last used.

        Raises:
            KeyError: there is no such name.
        """
        rows = dict(self._rows)
        return rows[last] - rows[first]

    def __str__(self) -> str:
        names = [field.name for field in fields(MemoryDifference)]
        lines = [" ".join([f"{'':{_NAME_WIDTH}}", "device", *(f"{name:>11}" for name in names), f"{'change':>11}"])]
        before: dict[int, CudaMemorySnapShot] = {}
        for name, snapshot in self._rows:
            sizes = (f"{_native.format_size(getattr(snapshot, column)):>11}" for column in names)
            earlier = before.get(snapshot.device_id)
            change = "" if earlier is None else _signed(snapshot.allocated - earlier.allocated)
            before[snapshot.device_id] = snapshot
            lines.append(
                " ".join([f"{name[:_NAME_WIDTH]:{_NAME_WIDTH}}", f"{snapshot.device_id:>6}", *sizes, f"{change:>11}"])
            )
        return "\n".join(lines)


def _signed(size: int) -> str:
    return ("-" if size < 0 else "+") + _native.format_size(abs(size))
