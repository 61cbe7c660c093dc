"""The report on a training by epoch, with advice for speed."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memlab import _native
from memlab._batches.batch import allowed
from memlab._batches.records import Record
from memlab._batches.sizing import room_on
from memlab._batches.strategies import PIECES, REPLAY
from memlab._tools.tables import aligned

_SIZE = _native.format_size


@dataclass(frozen=True)
class EpochReport:
    """The batches of an epoch, for one model if the training has several."""

    #: Counted from 0.
    epoch: int
    #: The name of the model; None: the training has one.
    phase: Any
    batches: int
    #: The mean over samples.
    #: None: the loss was computed outside memlab.
    loss: float | None
    samples: int
    #: Host time between the ends of batches.
    seconds: float
    #: The strategies of batches, as `memlab.InfinityBatch.plan` names them.
    ways: tuple[str, ...]
    #: Minimum and maximum pieces of a batch.
    pieces: tuple[int, int]
    #: PyTorch's peak of allocated bytes on the GPU by the end of a batch, since the last reset. None: the training has no
    #: GPU.
    peak_nbytes: int | None
    #: Bytes of activations that were copied to the host.
    offloaded_nbytes: int

    @property
    def samples_per_second(self) -> float | None:
        """Throughput of the epoch; None: no time passed."""
        return self.samples / self.seconds if self.seconds else None


@dataclass(frozen=True)
class TrainingReport:
    """The report on a training: its `epochs`, and `advice` for speed from their figures. Printed, it is a table.

    >>> records = [Record(0, batch, 40, 0.5, None, "replay", 1, 0, None) for batch in range(2)]
    >>> print(training_report(records, [0.5, 0.25], None))
    epoch  batches   loss  samples  seconds  samples/s  way     pieces  peak  offloaded
        0        2  0.375       80     1.00         80  replay       1     -        0 B
    <BLANKLINE>
    A batch is one piece, and replay runs its forward twice. Where batches fit, a plain loop (outputs = model(inputs)) runs
    it once.
    """

    epochs: tuple[EpochReport, ...]
    advice: tuple[str, ...]

    def __iter__(self) -> Iterator[EpochReport]:
        return iter(self.epochs)

    def __len__(self) -> int:
        return len(self.epochs)

    def __str__(self) -> str:
        if not self.epochs:
            return "no batch was recorded: ib.epoch() records them, or ib.backward() and ib.step() in your own loop"
        has_phases = any(epoch.phase is not None for epoch in self.epochs)
        columns = [index for index, name in enumerate(_COLUMNS) if has_phases or name != "phase"]
        rows = [[row[index] for index in columns] for row in (_COLUMNS, *map(_cells, self.epochs))]
        table = "\n".join(aligned(rows, left=[place for place, name in enumerate(rows[0]) if name in _TEXTS]))
        return "\n\n".join([table, *map(_wrapped, self.advice)])


@dataclass(frozen=True)
class Memory:
    """The memory of a training's GPU while nothing is computed."""

    #: Bytes allocated now: weights, the optimizer's state.
    allocated_nbytes: int
    #: Bytes that may be allocated beside that.
    room_nbytes: int
    #: Samples of a piece and the limit of allocated bytes, if the caller has set them.
    micro_batch: int | None
    limit_nbytes: int | None
    total_nbytes: int

    @staticmethod
    def on(device: torch.device, memory: str | int, micro_batch: int | None) -> Memory | None:
        """The current memory of a device; None: it is no GPU."""
        if device.type != "cuda":
            return None
        limit = allowed(memory)
        _, total = torch.cuda.mem_get_info(device)
        return Memory(torch.cuda.memory_allocated(device), room_on(device, limit), micro_batch, limit, total)


def training_report(records: Sequence[Record], losses: Sequence[float], memory: Memory | None) -> TrainingReport:
    """The report on batches and their losses. `memory`: None: the training has no GPU."""
    together: dict[tuple[int, Any], list[tuple[Record, float]]] = {}
    for record, loss in zip(records, losses, strict=True):
        together.setdefault((record.epoch, record.phase), []).append((record, loss))
    epochs = tuple(_epoch([one for one, _ in batches], [loss for _, loss in batches]) for batches in together.values())
    advice = (_on_losses(records, losses), _on_replay(records), _on_pieces(records, memory), _on_offloading(records, memory))
    return TrainingReport(epochs, tuple(one for one in advice if one is not None))


def _epoch(records: Sequence[Record], losses: Sequence[float]) -> EpochReport:
    samples = sum(record.samples for record in records)
    peaks = [record.peak_nbytes for record in records if record.peak_nbytes is not None]
    known = [(loss, record.samples) for loss, record in zip(losses, records, strict=True) if record.has_loss]
    weight = sum(count for _, count in known)
    return EpochReport(
        epoch=records[0].epoch,
        phase=records[0].phase,
        batches=len(records),
        loss=None if not known else sum(loss * count for loss, count in known) / weight if weight else math.nan,
        samples=samples,
        seconds=sum(record.seconds for record in records),
        ways=tuple(dict.fromkeys(record.way for record in records if record.way is not None)),
        pieces=(min(record.pieces for record in records), max(record.pieces for record in records)),
        peak_nbytes=max(peaks, default=None),
        offloaded_nbytes=sum(record.offloaded_nbytes for record in records),
    )


def _on_losses(records: Sequence[Record], losses: Sequence[float]) -> str | None:
    pairs = enumerate(zip(records, losses, strict=True))
    bad = next((index for index, (record, loss) in pairs if record.has_loss and not math.isfinite(loss)), None)
    if bad is None:
        return None
    return (
        f"The first loss that is not finite is {losses[bad]}, in epoch {records[bad].epoch}, batch {records[bad].batch}. "
        "torch.autograd.set_detect_anomaly(True) finds the operation."
    )


def _on_replay(records: Sequence[Record]) -> str | None:
    if not records or any(record.way != REPLAY or record.pieces > 1 for record in records):
        return None
    return (
        "Batches are one micro-batch each, and replay runs the forward twice. If batches fit, a plain loop (outputs = "
        "model(inputs)) runs it once."
    )


def _on_pieces(records: Sequence[Record], memory: Memory | None) -> str | None:
    """Advice on larger pieces. Memory beyond the constant part grows at most in proportion to the samples of a piece."""
    pieced = [one for one in records if one.way in (PIECES, REPLAY) and one.pieces > 1 and one.peak_nbytes is not None]
    if memory is None or not pieced:
        return None
    largest = max(pieced, key=lambda record: record.samples)
    taken = max(record.peak_nbytes or 0 for record in pieced) - memory.allocated_nbytes
    if taken <= 0:
        return None
    size = memory.micro_batch
    if size is None:
        if largest.pieces < largest.samples or taken * 2 <= memory.room_nbytes:
            return None
        return (
            f"A micro-batch is one sample and needs {_SIZE(taken)}: two do not fit in {_SIZE(memory.room_nbytes)}. "
            "Checkpointing in the model (torch.utils.checkpoint) reduces that, and allows larger micro-batches."
        )
    fits = memory.room_nbytes // taken
    if fits >= largest.pieces:
        what = f"all {largest.pieces} micro-batches of a batch fit at once"
    elif fits >= 2:
        what = f"micro-batches of {fits * size} samples fit"
    else:
        return None
    return (
        f"A micro-batch of {size} needs {_SIZE(taken)} of {_SIZE(memory.room_nbytes)}: {what}. Without micro_batch, memlab "
        "uses the largest size that fits."
    )


def _on_offloading(records: Sequence[Record], memory: Memory | None) -> str | None:
    offloaded = sum(record.offloaded_nbytes for record in records)
    if memory is None or memory.limit_nbytes is None or offloaded == 0 or memory.limit_nbytes >= memory.total_nbytes:
        return None
    return (
        f"{_SIZE(offloaded)} were copied to the host to stay within memory={_SIZE(memory.limit_nbytes)}; the GPU has "
        f"{_SIZE(memory.total_nbytes)}. A larger memory= copies less."
    )


_COLUMNS = ("epoch", "phase", "batches", "loss", "samples", "seconds", "samples/s", "way", "pieces", "peak", "offloaded")
_TEXTS = ("phase", "way")
_WIDTH = 120


def _cells(epoch: EpochReport) -> tuple[str, ...]:
    speed = epoch.samples_per_second
    fewest, most = epoch.pieces
    return (
        str(epoch.epoch),
        "" if epoch.phase is None else str(epoch.phase),
        f"{epoch.batches:,}",
        "-" if epoch.loss is None else f"{epoch.loss:.4g}",
        f"{epoch.samples:,}",
        f"{epoch.seconds:.2f}",
        "-" if speed is None else f"{speed:,.0f}",
        ", ".join(epoch.ways),
        str(most) if fewest == most else f"{fewest} to {most}",
        "-" if epoch.peak_nbytes is None else _SIZE(epoch.peak_nbytes),
        _SIZE(epoch.offloaded_nbytes),
    )


def _wrapped(text: str) -> str:
    return "\n".join(textwrap.wrap(text, _WIDTH))
