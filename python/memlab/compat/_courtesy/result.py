"""The memory that a courtesy has moved, and the memory that stayed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from memlab._paging.sizes import readable


class StayedMemory(NamedTuple):
    """Memory that stayed on a GPU, for one reason and from one place."""

    device: int
    nbytes: int
    why: str
    category: str | None = None  # As in the reports; None if memlab did not record the program.
    line: str | None = None  # ``train.py:12 forward``.
    layer: str | None = None


@dataclass(frozen=True)
class Yielded:
    """Result of `Courtesy.yield_memory`."""

    moved: int = 0  # Bytes that are in host memory now, and were on a GPU before.
    offloaded: bool = False  # By libmemlab: every GPU call of the program waits until the restore.
    stayed: list[StayedMemory] = field(default_factory=list)  # Memory of tensors that could not be moved, largest first.

    @property
    def stayed_bytes(self) -> int:
        return sum(row.nbytes for row in self.stayed)

    def __str__(self) -> str:
        if self.offloaded:
            return f"{readable(self.moved)} in host memory, at the same addresses: calls that use the GPU wait for restore()"
        text = [f"{readable(self.moved)} moved to host memory"]
        if self.stayed:
            text[0] += f", {readable(self.stayed_bytes)} stayed on the GPU:"
        for row in self.stayed:
            place = "  ".join(part for part in (row.category, row.line, row.layer) if part)
            text.append(f"  {readable(row.nbytes):>10}  cuda:{row.device}  {row.why}" + (f": {place}" if place else ""))
        return "\n".join(text)
