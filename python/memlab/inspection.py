"""``memlab.inspect``: how much memory a training will take, at any batch size and on any card, before there is a GPU.

    report = memlab.inspect(model, batch, loss=loss, optimizer="adamw", amp=torch.bfloat16)
    report.largest_batch("24GiB", allocator="expandable_segments:True")
    print(report.peak(batch=32))

The model's structure is sent to two processes of their own, which run a few steps at two batch sizes on a simulated card, or
on the GPU. No weights are copied, and the model may be larger than the machine (on the meta device).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

import torch

from memlab import _native
from memlab._inspection.batches import with_rows
from memlab._inspection.card import DEFAULT, Card, card_of, card_that_is_there, is_gpu_there
from memlab._inspection.peak import Peak, peak_of
from memlab._inspection.recorded import InspectionError, recorded
from memlab._inspection.structure import CannotTravel
from memlab._inspection.training import OPTIMIZERS, Training
from memlab._paging.sizes import readable

__all__ = ["CannotTravel", "InspectionError", "Peak", "Report", "Setting", "inspect"]

Optimizer = str | Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] | None
_SHOWN = 6


@dataclass(frozen=True)
class Setting:
    """What settings of PyTorch's allocator do on a card."""

    allocator: str  #: As in ``PYTORCH_ALLOC_CONF``; empty: PyTorch's own.
    largest_batch: int  #: That fits with them; 0 if none does.
    needed: int  #: The smallest card, in bytes, for the largest batch that fits with today's settings.
    is_current: bool  #: Whether they are those of this process's environment.


class Report:
    """What a training takes at any batch size. Made by `memlab.inspect`."""

    def __init__(self, family: _native.PlanFamily, batches: tuple[int, int], card: str, title: str) -> None:
        self._family = family
        self._batches = batches
        self._card = card
        self._title = title

    def peak(self, batch: int, card: int | str | None = None, allocator: str | None = None) -> Peak:
        """What is allocated, reserved and needed at a batch size, and what holds it.

        Args:
            batch: rows in a batch.
            card: a name (``"a100-40gb"``), a size (``"24GiB"``) or bytes; its context is counted. None: that of `inspect`.
            allocator: settings as in ``PYTORCH_ALLOC_CONF``; None: those of the environment.

        Raises:
            ValueError: the card is not known, the settings are not valid, or the batch is not positive.
        """
        if batch < 1:
            raise ValueError(f"batch={batch}: must be 1 or more")
        return peak_of(self._family, self._batches, batch, self._card_of(card), _settings(allocator))

    def largest_batch(self, card: int | str | None = None, *, allocator: str | None = None) -> int:
        """The largest batch that fits on a card; 0 if none does. Arguments and errors are those of `peak`."""
        where = self._card_of(card)
        return self._family.largest_batch(where.nbytes, _settings(allocator), where.context)

    def settings(self, card: int | str | None = None) -> list[Setting]:
        """What other settings of the allocator would do on a card, today's first.

        Raises:
            ValueError: the card is not known, or today's settings are not valid.
        """
        where, today = self._card_of(card), _settings(None)
        batch = self.largest_batch(card) or self._batches[0]
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
        """The most bytes of what a step's forward leaves to its backward: tensors that autograd saves, and outputs."""
        return self._family.activation_bytes(batch)

    def __repr__(self) -> str:
        return f"<memlab.Report: {self._title}>"

    def __str__(self) -> str:
        head, rows, peak = self._table()
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([head, "", *lines, "", str(peak)])

    def _repr_html_(self) -> str:
        head, rows, peak = self._table()
        tags = ["th", *["td"] * (len(rows) - 1)]
        cells = ("".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for row, tag in zip(rows, tags, strict=True))
        table = "".join(f"<tr>{row}</tr>" for row in cells)
        return f"<p>{escape(head)}</p><table>{table}</table><pre>{escape(str(peak))}</pre>"

    def _table(self) -> tuple[str, list[tuple[str, ...]], Peak]:
        card, largest = self._card_of(None), self.largest_batch()
        fits = f"the largest batch is {largest}" if largest else "no batch fits"
        head = f"{self._title}; {card.name} ({readable(card.nbytes)}): {fits}"
        shown = _batches_to_show(largest or self._batches[0])
        peaks = [self._family.needs(batch, _settings(None), card.context)[:3] for batch in shown]
        rows: list[tuple[str, ...]] = [("batch", "allocated", "reserved", "smallest card")]
        rows += [(str(batch), *map(readable, sizes)) for batch, sizes in zip(shown, peaks, strict=True)]
        return head, rows, self.peak(largest or self._batches[0])

    def _card_of(self, card: int | str | None) -> Card:
        return card_of(self._card if card is None else card)


def inspect(
    model: torch.nn.Module,
    batch: Any,
    *,
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    optimizer: Optimizer = "adamw",
    amp: torch.dtype | None = None,
    accumulate: int = 1,
    source: Literal["auto", "gpu", "simulated"] = "auto",
    card: int | str | None = None,
    steps: int = 4,
    batches: tuple[int, int] = (2, 4),
    batch_dim: int = 0,
) -> Report:
    """Plans the memory of a training, or of inference, from a few steps at two batch sizes.

    Each step sets gradients to zero, moves a batch to the GPU, runs forward, loss and backward, and the optimizer. As in
    most programs, outputs live until those of the next step are there. A model in evaluation mode is trained in training
    mode.

    Args:
        model: on any device; on the meta device it may be larger than the machine.
        batch: an example of any size: a tensor, or a dict, tuple or list of tensors. Of a dict, the model gets what its
            forward has parameters for; of a tuple all, or the first if its forward does not take so many.
        loss: from outputs and batch, both on the GPU, to a scalar. None: ``outputs.loss``, or the sum of the outputs.
        optimizer: ``"adamw"``, ``"adam"``, ``"sgd"``, ``"adafactor"``, a function from parameters to an optimizer, or None
            for inference without gradients.
        amp: the type of autocast, with a `GradScaler` for ``torch.float16``.
        accumulate: backwards in a step of the optimizer.
        source: where the steps run: ``"gpu"``, ``"simulated"``, or ``"auto"`` for the GPU if there is one.
        card: the card (name, size or bytes) that is simulated, and that the report is for unless told otherwise. None: the
            GPU that is there, or an H100.
        steps: how many steps are recorded.
        batches: the two batch sizes that are recorded. The further from them, the more may a kernel choose another way.
        batch_dim: the dimension of tensors in `batch` that counts its rows. Tensors with other sizes there stay as they are.

    Raises:
        InspectionError: PyTorch has no CUDA, or the model fails: what it printed.
        CannotTravel: the model, the batch or a function cannot be pickled. Functions and classes of the main program travel
            if cloudpickle is installed; others are imported.
        TypeError, ValueError: an argument is wrong.

    >>> import memlab, torch
    >>> with torch.device("meta"):
    ...     model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 1))
    >>> report = memlab.inspect(model, torch.zeros(1, 1024), source="simulated")
    >>> peak = report.peak(batch=64)
    >>> peak.categories["parameter"] >= 4 * 1024 * 1025, peak.allocated < peak.needed < report.peak(batch=4096).needed
    (True, True)
    """
    training = _training(model, batch, loss, optimizer, amp, accumulate, steps, batches, batch_dim)
    if torch.version.cuda is None:
        raise InspectionError(
            "this PyTorch is built without CUDA: install a build with CUDA, which runs on the simulated card without a GPU"
        )
    if source not in ("auto", "gpu", "simulated"):
        raise ValueError(f"source={source!r}: must be 'auto', 'gpu' or 'simulated'")
    on_gpu = source == "gpu" or (source == "auto" and is_gpu_there())
    default = card_that_is_there() if on_gpu and card is None else DEFAULT
    name = f"{card}B" if isinstance(card, int) else card or default
    where = card_of(name)
    family = recorded(training, batches, name, on_gpu)
    kind = optimizer if isinstance(optimizer, str) else "inference" if optimizer is None else "an optimizer of its own"
    mixed = f", {str(amp).removeprefix('torch.')}" if amp is not None else ""
    recording = f"batches {min(batches)} and {max(batches)} on {'' if on_gpu else 'a simulated '}{where.name}"
    low, high = sorted(batches)
    return Report(family, (low, high), name, f"{type(model).__name__}, {kind}{mixed}, recorded with {recording}")


def _training(
    model: torch.nn.Module,
    batch: Any,
    loss: Callable[[Any, Any], torch.Tensor] | None,
    optimizer: Optimizer,
    amp: torch.dtype | None,
    accumulate: int,
    steps: int,
    batches: tuple[int, int],
    batch_dim: int,
) -> Training:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if isinstance(optimizer, str):
        there = [name for name, of_torch in OPTIMIZERS.items() if hasattr(torch.optim, of_torch)]
        if optimizer not in there:
            raise ValueError(f"optimizer={optimizer!r}: must be {', '.join(there)}, a function from parameters, or None")
    for name, count in (("accumulate", accumulate), ("steps", steps), *(("batches", size) for size in batches)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"{name}={count!r}: must be 1 or more")
    if len(batches) != 2 or batches[0] == batches[1]:
        raise ValueError(f"batches={batches}: two different batch sizes are recorded")
    example = with_rows(batch, batch_dim, max(batches))
    # One step more than is recorded: the end of the last one is noted when the next one ends.
    return Training(model, example, batch_dim, loss, optimizer, amp, accumulate, steps + 1)


def _settings(allocator: str | None) -> str:
    if allocator is not None:
        return allocator
    return os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""


def _batches_to_show(largest: int) -> list[int]:
    """Powers of two below it, and itself."""
    powers = [1 << power for power in range(largest.bit_length()) if 1 << power < largest]
    return [*powers[1 - _SHOWN :], largest]
