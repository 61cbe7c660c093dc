"""The report of `memlab.MemReporter` on one device, as numbers and as text."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from memlab import _native
from memlab._native import short_size
from memlab.compat._reporter.unseen_memory import ROUNDING, UnseenMemory
from memlab.holding import Holder

RULE_WIDTH = 79  # Width of pytorch_memlab's tables, with columns of 40, 20 and 10.
NAME_WIDTH, SHAPE_WIDTH, SIZE_WIDTH = 40, 20, 10
_LINES = 20  # Lines of unseen memory in a text that is not verbose.


class TensorRow(NamedTuple):
    """A tensor: `nbytes` is the size of its block, 0 if it shares the memory of the tensor named `shares`."""

    name: str
    shape: str
    elements: int
    nbytes: int
    shares: str | None


@dataclass
class DeviceReport:
    """The tensors on one device, and other memory in use there.

    On a CUDA device the tensors without `foreign` and `unseen` sum to `allocated`, and these with `outside` sum to `used`.
    """

    device: str
    names: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    elements: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    shares: list[str | None] = field(default_factory=list)
    foreign: int = 0  # Bytes of tensors whose memory is not from PyTorch's caching allocator.
    allocated: int | None = None  # torch.cuda.memory_allocated(); None for devices other than CUDA's.
    unseen: list[UnseenMemory] = field(default_factory=list)
    outside: list[UnseenMemory] = field(default_factory=list)
    used: int | None = None  # None if unknown.
    holders: list[Holder] = field(default_factory=list)  # The objects that keep `unseen` alive, if they were searched for.

    @property
    def tensors(self) -> list[TensorRow]:
        """Rows of the table."""
        columns = (self.names, self.shapes, self.elements, self.sizes, self.shares)
        return list(map(TensorRow, *columns))

    @property
    def nbytes(self) -> int:
        """Total bytes of the tensors."""
        return sum(self.sizes)

    def text(self, verbose: bool = False) -> str:
        """Returns the table. `verbose` adds the owner of shared memory, and every line."""
        return "\n".join(self.pieces(verbose))

    def pieces(self, verbose: bool) -> list[str]:
        """Returns the text in pieces of whole lines. The rows of the tensors are one piece, which can be a megabyte."""
        shares = self.shares if verbose else None
        widths = NAME_WIDTH, SHAPE_WIDTH, SIZE_WIDTH
        rows, width = _native.table_rows(self.names, shares, self.shapes, self.sizes, widths)
        rule = "-" * (RULE_WIDTH + width - NAME_WIDTH)
        row = f"%-{width}s%{SHAPE_WIDTH}s%{SIZE_WIDTH}s"
        lines = [rule, f"Storage on {self.device}", *([rows] if rows else []), rule]
        lines.append(f"Total Tensors: {sum(self.elements)} \tUsed Memory: {short_size(self.nbytes)}")
        if self.allocated is not None:
            lines.append(f"The allocated memory on {self.device}: {short_size(self.allocated)}")
            lines += self._difference(row, verbose)
        if self.used is not None:
            lines += [rule, f"The memory in use on {self.device}: {short_size(self.used)}"]
            lines += [row % (what_it_is(entry), "", short_size(entry.nbytes)) for entry in self.outside]
        return [*lines, rule]

    def _difference(self, row: str, verbose: bool) -> list[str]:
        lines = []
        if self.foreign:
            lines.append(f"Tensors outside PyTorch's allocator, not in its sum: {short_size(self.foreign)}")
        if self.unseen:
            shown = self.unseen if verbose else self.unseen[:_LINES]
            lines.append("Memory without a tensor in Python:")
            lines += [row % (what_it_is(entry), where(entry), short_size(entry.nbytes)) for entry in shown]
            rest = self.unseen[len(shown) :]
            if rest:
                size = short_size(sum(entry.nbytes for entry in rest))
                lines.append(row % (f"{len(rest)} more lines (verbose=True)", "", size))
        if self.holders:
            lines.append("It is kept alive by:")
            lines += [row % (names_of(entry), where(entry), short_size(entry.bytes)) for entry in self.holders]
        return lines


_WORDS = {
    "activation": "held for backward",
    "before_memlab": "before memlab",
    "cached": "cached (reserved, not allocated)",
    "input": "held for backward (an input)",
    "kv_cache": "KV cache",
    "optimizer_state": "optimizer state",
    "other_processes": "other processes",
    "unknown": "not a Python tensor",
    ROUNDING: "rounding of the allocator's blocks",
}


def what_it_is(entry: UnseenMemory) -> str:
    """Returns the category in words, with the layer."""
    words = _WORDS.get(entry.category, entry.category)
    return words if entry.layer is None else f"{words}: {entry.layer or '(model)'}"


def names_of(holder: Holder) -> str:
    """Returns ``list history``, or ``hidden and loss together``."""
    if len(holder.names) > 1:
        return f"{', '.join(holder.names[:-1])} and {holder.names[-1]} together"
    return " ".join([holder.kind, *filter(None, holder.names)])


def where(entry: UnseenMemory | Holder) -> str:
    """Returns ``train.py:12``, or nothing."""
    return f"{Path(entry.file).name}:{entry.line}" if entry.file else ""
