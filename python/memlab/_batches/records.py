"""The figures of each batch of a training: loss, samples, seconds. Noting them does not wait for the GPU."""

from __future__ import annotations

import json
import math
import os
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Losses that stay on the GPU one by one, of 512 bytes each there, before they are put together.
_TOGETHER = 64


class _Record(NamedTuple):
    """A batch: of which epoch, which of it, and how long it took since the one before."""

    epoch: int
    batch: int
    samples: int
    seconds: float
    phase: Any


class Records:
    """What was noted of batches, by epoch.

    >>> records = Records()
    >>> records.begin_epoch()
    >>> records.add(torch.tensor(0.5), 8)
    >>> records.losses(), records.rows()[0]["batch"]
    ([[(0.5, 8)]], 0)
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self._records: list[_Record] = []
        self._read: list[list[tuple[float, int]]] = []
        self._joined: list[Tensor] = []
        self._single: list[Tensor] = []
        self._epochs = 0
        self._batches = 0
        self._mark: float | None = None

    def begin_epoch(self) -> None:
        """What follows belongs to another epoch."""
        self._epochs += 1
        self._batches = 0
        self._mark = time.perf_counter()

    def begin_batch(self) -> None:
        """The first batch begins now, if no epoch did."""
        if self._mark is None:
            self._mark = time.perf_counter()

    def add(self, loss: Tensor, samples: int, phase: Any = None) -> None:
        """A batch that is done, of a phase if there are several."""
        if self._epochs == 0:
            self._epochs = 1
        now = time.perf_counter()
        seconds = 0.0 if self._mark is None else now - self._mark
        self._records.append(_Record(self._epochs - 1, self._batches, samples, seconds, phase))
        self._batches += 1
        self._mark = now
        if self._single and self._single[-1].device != loss.device:
            self._join()
        self._single.append(loss.detach().reshape(()).double())
        if len(self._single) == _TOGETHER:
            self._join()

    def losses(self) -> list[list[tuple[float, int]]]:
        """``(loss, samples)`` of batches, by epoch and batch. Those that are on a GPU are waited for, once."""
        self._join()
        known = sum(map(len, self._read))
        values = [value for joined in self._joined for value in joined.tolist()]
        self._joined = []
        self._read += [[] for _ in range(self._epochs - len(self._read))]
        for record, value in zip(self._records[known:], values, strict=True):
            self._read[record.epoch].append((value, record.samples))
        return self._read

    def rows(self) -> list[dict[str, Any]]:
        """All figures, a dictionary for each batch."""
        losses = self.losses()
        return [
            {
                "epoch": record.epoch,
                "batch": record.batch,
                **({} if record.phase is None else {"phase": record.phase}),
                "loss": losses[record.epoch][record.batch][0],
                "samples": record.samples,
                "seconds": record.seconds,
                "samples_per_second": record.samples / record.seconds if record.seconds else None,
            }
            for record in self._records
        ]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes them as JSON Lines. A loss that is no number (NaN, infinity), which JSON does not have, is null."""
        finite = [{**row, "loss": row["loss"] if math.isfinite(row["loss"]) else None} for row in self.rows()]
        rows = "".join(json.dumps(row) + "\n" for row in finite)
        with open(path, "w", encoding="utf-8") as file:
            file.write(rows)

    def _join(self) -> None:
        if self._single:
            self._joined.append(torch.stack(self._single))
            self._single = []
