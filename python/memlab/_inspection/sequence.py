"""The memory of steps of different lengths."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memlab._paging.sizes import readable
from memlab._tools.tables import aligned


@dataclass(frozen=True)
class SequenceRow:
    """The memory of an order of the lengths with settings of the allocator. Sizes are bytes."""

    order: str  #: ``"as given"``, ``"shuffled"``, ``"longest first"``, ``"ascending"`` or ``"padded to 64"`` (128, 256).
    allocator: str  #: Settings as in ``PYTORCH_ALLOC_CONF``; empty: PyTorch's defaults.
    is_current: bool  #: True for the given order with the current settings.
    longest: int  #: The longest step, with padding.
    total_length: int  #: All lengths together, with padding.
    allocated: int  #: ``torch.cuda.max_memory_allocated()``.
    reserved: int  #: ``torch.cuda.max_memory_reserved()`` on a card that is never full.
    needed: int  #: The memory of the smallest card on which all steps run, context and libraries included.
    fits: bool  #: True if the card has that much.
    retries: int  #: Number of times that unused memory is returned because the card is full, which stops the GPU.


@dataclass(frozen=True)
class StepSequence:
    """The memory of consecutive steps of different lengths: ``report.sequence`` of `memlab.inspect`."""

    batch: int  #: Rows in each step: those of the example.
    dimension: int  #: The dimension of tensors that is the length.
    tensors: Sequence[str]  #: The tensors of the batch that have the length there.
    steps: int  #: Number of given lengths.
    replayed_steps: int  #: Number of lengths behind the figures, evenly spaced: all, up to many thousands.
    shortest: int  #: The shortest length.
    longest: int  #: The longest length.
    recorded_lengths: Sequence[int]  #: Lengths that were run.
    rows: Sequence[SequenceRow]  #: Orders and settings.
    advice: str  #: A sentence on saving memory on the card.

    @property
    def current(self) -> SequenceRow:
        """The lengths in the given order, with the current settings."""
        return next(row for row in self.rows if row.is_current)

    def __str__(self) -> str:
        today = self.current
        recorded = ", ".join(map(str, self.recorded_lengths))
        head = (
            f"{self.steps} steps of length {self.shortest} to {self.longest}, batch {self.batch} "
            f"(dimension {self.dimension} of {', '.join(self.tensors)}), recorded at {recorded}"
        )
        shown = [row for row in self.rows if row.allocator == today.allocator or row.order == today.order]
        cells: list[tuple[str, ...]] = [("order", "allocated", "reserved", "smallest card", "retries", "fits", "settings")]
        for row in shown:
            sizes = map(readable, (row.allocated, row.reserved, row.needed))
            cells.append(
                (row.order, *sizes, str(row.retries), "yes" if row.fits else "no", row.allocator or "PyTorch's default")
            )
        return "\n".join([head, "", *aligned(cells), "", f"{self.advice[:1].upper()}{self.advice[1:]}."])


def sequence_of(answer: dict[str, Any], dimension: int, tensors: Sequence[str]) -> StepSequence:
    """Reads the JSON of `memlab plan --lengths`."""
    rows = [
        SequenceRow(
            order=row["order"],
            allocator=row["settings"],
            is_current=row["is_current"],
            longest=row["longest"],
            total_length=row["total_length"],
            allocated=row["peak_allocated_bytes"],
            reserved=row["peak_reserved_bytes"],
            needed=row["needed_bytes"],
            fits=row["fits"],
            retries=row["retries"],
        )
        for row in answer["rows"]
    ]
    return StepSequence(
        batch=answer["batch"],
        dimension=dimension,
        tensors=tuple(tensors),
        steps=answer["steps"],
        replayed_steps=answer["replayed_steps"],
        shortest=answer["shortest"],
        longest=answer["longest"],
        recorded_lengths=tuple(answer["recorded_lengths"]),
        rows=tuple(rows),
        advice=answer["advice"],
    )


def lengths_in(lengths: Iterable[int] | str | os.PathLike[str]) -> list[int]:
    """The given lengths, or those in a file.

    Raises:
        ValueError: no length is given, or one is less than 1.
        OSError: the file cannot be read.
    """
    given: Iterable[int | str] = (
        lengths if not isinstance(lengths, (str, os.PathLike)) else Path(lengths).read_text().split()
    )
    numbers = [int(length) for length in given]
    if not numbers or min(numbers) < 1:
        raise ValueError("lengths: one number for each step, 1 or more")
    return numbers
