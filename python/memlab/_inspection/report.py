"""The result of `memlab.inspect`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from html import escape

from memlab import _native
from memlab._inspection.card import Card, card_of
from memlab._inspection.peak import Peak, peak_of
from memlab._inspection.sequence import StepSequence
from memlab._paging.sizes import readable
from memlab._tools.tables import aligned

_SHOWN = 6


@dataclass(frozen=True)
class Setting:
    """The effect of settings of PyTorch's allocator on a card."""

    allocator: str  #: As in ``PYTORCH_ALLOC_CONF``; empty: PyTorch's defaults.
    largest_batch: int  #: The largest batch that fits; 0 if none does.
    needed: int  #: Bytes of the smallest card for the largest batch that fits with the current settings.
    is_current: bool  #: True for the settings of this process's environment.


class Report:
    """The memory of a training at any batch size. Made by `memlab.inspect`."""

    #: Memory of steps of the given `lengths`; None if no lengths were given.
    sequence: StepSequence | None

    def __init__(self, family: _native.PlanFamily, card: str, title: str, sequence: StepSequence | None) -> None:
        self.sequence = sequence
        self._family = family
        self._card = card
        self._title = title

    def peak(self, batch: int, card: int | str | None = None, allocator: str | None = None) -> Peak:
        """The allocated, reserved and needed memory at a batch size, and the holders of the peak.

        Args:
            batch: rows in a batch.
            card: a name (``"a100-40gb"``), a size (``"24GiB"``) or bytes; its context is counted. None: that of `inspect`.
            allocator: settings as in ``PYTORCH_ALLOC_CONF``; None: those of the environment.

        Raises:
            ValueError: the card is not known, the settings are not valid, or the batch is not positive.
        """
        if batch < 1:
            raise ValueError(f"batch={batch}: must be 1 or more")
        return peak_of(self._family, batch, self._card_of(card), _settings(allocator))

    def largest_batch(self, card: int | str | None = None, *, allocator: str | None = None) -> int:
        """The largest batch that fits on a card; 0 if none does. Arguments and errors are those of `peak`."""
        where = self._card_of(card)
        return self._family.largest_batch(where.nbytes, _settings(allocator), where.context)

    def settings(self, card: int | str | None = None) -> list[Setting]:
        """The effect of other settings of the allocator on a card. The current settings come first.

        Raises:
            ValueError: the card is not known, or the current settings are not valid.
        """
        where, today = self._card_of(card), _settings(None)
        batch = self.largest_batch(card) or self._family.recorded_batches[0]
        return [
            Setting(
                allocator=text,
                largest_batch=self._family.largest_batch(where.nbytes, text, where.context),
                needed=self._family.needs(batch, text, where.context)[2],
                is_current=text == today,
            )
            for text in dict.fromkeys([today, *_native.SETTINGS_TO_TRY])
        ]

    def activation_bytes(self, batch: int) -> int:
        """Peak bytes that a step's forward leaves to its backward: tensors that autograd saves, and outputs."""
        return self._family.activation_bytes(batch)

    def __repr__(self) -> str:
        return f"<memlab.Report: {self._title}>"

    def __str__(self) -> str:
        head, rows, peak = self._table()
        sequence = ["", str(self.sequence)] if self.sequence is not None else []
        return "\n".join([head, "", *aligned(rows), "", str(peak), *sequence])

    def _repr_html_(self) -> str:
        head, rows, peak = self._table()
        tags = ["th", *["td"] * (len(rows) - 1)]
        cells = ("".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for row, tag in zip(rows, tags, strict=True))
        table = "".join(f"<tr>{row}</tr>" for row in cells)
        texts = [str(peak)] if self.sequence is None else [str(peak), str(self.sequence)]
        return f"<p>{escape(head)}</p><table>{table}</table>" + "".join(f"<pre>{escape(text)}</pre>" for text in texts)

    def _table(self) -> tuple[str, list[tuple[str, ...]], Peak]:
        card, largest = self._card_of(None), self.largest_batch()
        fits = f"the largest batch is {largest}" if largest else "no batch fits"
        head = f"{self._title}; {card.name} ({readable(card.nbytes)}): {fits}"
        shown = _batches_to_show(largest or self._family.recorded_batches[0])
        peaks = [self._family.needs(batch, _settings(None), card.context)[:3] for batch in shown]
        rows: list[tuple[str, ...]] = [("batch", "allocated", "reserved", "smallest card")]
        rows += [(str(batch), *map(readable, sizes)) for batch, sizes in zip(shown, peaks, strict=True)]
        return head, rows, self.peak(largest or self._family.recorded_batches[0])

    def _card_of(self, card: int | str | None) -> Card:
        return card_of(self._card if card is None else card)


def _settings(allocator: str | None) -> str:
    if allocator is not None:
        return allocator
    return os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""


def _batches_to_show(largest: int) -> list[int]:
    """Powers of two below the largest batch, and that batch."""
    powers = [1 << power for power in range(largest.bit_length()) if 1 << power < largest]
    return [*powers[1 - _SHOWN :], largest]
