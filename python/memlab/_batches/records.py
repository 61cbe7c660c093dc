"""The figures of each batch of a training: loss, samples, seconds. Recording them does not wait for the GPU."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memlab._activations.copy_streams import copied_nbytes
from memlab._batches.observers import Computation

# Losses that stay on the GPU separately, 512 bytes each, before they are joined into one tensor.
_TOGETHER = 64


class Record(NamedTuple):
    """The figures of a batch: its place, its duration since the batch before, and its strategy."""

    epoch: int
    batch: int
    samples: int
    seconds: float
    phase: Any
    way: str | None
    pieces: int
    #: Bytes copied to the host since the batch before.
    offloaded_nbytes: int
    #: PyTorch's peak of allocated bytes on the GPU since the last reset; None: the training has no GPU.
    peak_nbytes: int | None
    #: True if the loss is known. Loops that you write may compute it outside memlab.
    has_loss: bool = True


class Records:
    """The records of batches, by epoch.

    >>> records = Records()
    >>> records.begin_epoch()
    >>> record = records.add(torch.tensor(0.5), 8)
    >>> records.losses(), records.rows()[0]["batch"]
    ([[(0.5, 8)]], 0)
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self._records: list[Record] = []
        self._read: list[list[tuple[float, int]]] = []
        self._joined: list[Tensor] = []
        self._single: list[Tensor] = []
        self._epochs = 0
        self._batches = 0
        # End of the last batch, and the bytes copied to the host until then.
        self._mark: tuple[float, int] | None = None

    @property
    def all(self) -> Sequence[Record]:
        """The records of all batches, without their losses."""
        return self._records

    def begin_epoch(self) -> None:
        """Begins a new epoch."""
        self._epochs += 1
        self._batches = 0
        self._mark = _now()

    def begin_batch(self) -> None:
        """Begins the first batch, if no epoch has begun."""
        if self._mark is None:
            self._mark = _now()

    def _done(self, samples: int, phase: Any, computation: Computation | None, peak: int | None, has_loss: bool) -> Record:
        """The record of a batch that is done. The next batch begins now."""
        now = _now()
        since, copied = now if self._mark is None else self._mark
        self._mark = now
        return Record(
            epoch=max(self._epochs - 1, 0),
            batch=self._batches,
            samples=samples,
            seconds=now[0] - since,
            phase=phase,
            way=None if computation is None else computation.way,
            # A batch computed at once reports no pieces.
            pieces=1 if computation is None else max(computation.pieces, 1),
            offloaded_nbytes=max(now[1] - copied, 0),
            peak_nbytes=peak,
            has_loss=has_loss,
        )

    def add(
        self,
        loss: Tensor | None,
        samples: int,
        phase: Any = None,
        computation: Computation | None = None,
        peak: int | None = None,
    ) -> Record:
        """Adds a batch that is done, and returns its record. `loss`: None: not known. `phase`: of several models."""
        if self._epochs == 0:
            self._epochs = 1
        record = self._done(samples, phase, computation, peak, loss is not None)
        if loss is None:
            loss = torch.full((), math.nan, device=self._single[-1].device if self._single else "cpu")
        self._records.append(record)
        self._batches += 1
        if self._single and self._single[-1].device != loss.device:
            self._join()
        self._single.append(loss.detach().reshape(()).double())
        if len(self._single) == _TOGETHER:
            self._join()
        return record

    def losses(self) -> list[list[tuple[float, int]]]:
        """``(loss, samples)`` of batches, by epoch and batch. Waits once for losses that are on a GPU. Unknown losses are
        NaN."""
        self._join()
        known = sum(map(len, self._read))
        values = [value for joined in self._joined for value in joined.tolist()]
        self._joined = []
        self._read += [[] for _ in range(self._epochs - len(self._read))]
        for record, value in zip(self._records[known:], values, strict=True):
            self._read[record.epoch].append((value, record.samples))
        return self._read

    def rows(self) -> list[dict[str, Any]]:
        """All figures, as a dictionary for each batch."""
        losses = self.losses()
        return [
            {
                "epoch": record.epoch,
                "batch": record.batch,
                **({} if record.phase is None else {"phase": record.phase}),
                "loss": losses[record.epoch][record.batch][0] if record.has_loss else None,
                "samples": record.samples,
                "seconds": record.seconds,
                "samples_per_second": record.samples / record.seconds if record.seconds else None,
                "way": record.way,
                "pieces": record.pieces,
                "offloaded_bytes": record.offloaded_nbytes,
            }
            for record in self._records
        ]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the rows as JSON Lines. NaN and infinite losses, which JSON does not have, are written as null."""
        finite = [{**row, "loss": _finite(row["loss"])} for row in self.rows()]
        rows = "".join(json.dumps(row) + "\n" for row in finite)
        with open(path, "w", encoding="utf-8") as file:
            file.write(rows)

    def _join(self) -> None:
        if self._single:
            self._joined.append(torch.stack(self._single))
            self._single = []


def _finite(loss: float | None) -> float | None:
    return loss if loss is not None and math.isfinite(loss) else None


def _now() -> tuple[float, int]:
    return time.perf_counter(), copied_nbytes()
