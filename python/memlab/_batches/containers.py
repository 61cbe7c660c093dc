"""The part of `memlab.InfinityBatch` that keeps batches."""

from __future__ import annotations

import os
from typing import Any

from memlab._batches.disk_store import EpochValues
from memlab._batches.kept_batches import KeptBatches
from memlab._batches.traced_steps import write_losses


class Containers:
    """The values kept of batches, by epoch and batch, and the figures of batches."""

    _kept: KeptBatches

    @property
    def keep(self) -> str:
        """The policy: which values the containers hold. Setting it empties them."""
        return self._kept.policy

    @keep.setter
    def keep(self, policy: str) -> None:
        before: KeptBatches | None = vars(self).get("_kept")
        folder = before.folder if before is not None and policy == "disk" else None
        self._kept = KeptBatches(policy, None if before is None else before.nbytes, folder)

    @property
    def keep_nbytes(self) -> int | None:
        """Maximum bytes of inputs, targets and outputs. None: no limit."""
        return self._kept.nbytes

    @keep_nbytes.setter
    def keep_nbytes(self, nbytes: str | int | None) -> None:
        self._kept.bound(nbytes)

    @property
    def inputs(self) -> list[EpochValues]:
        """The inputs of batches, by epoch and batch. None for a batch that was dropped to stay within `keep_nbytes`."""
        return self._kept.inputs

    @property
    def targets(self) -> list[EpochValues]:
        """The targets of batches, by epoch and batch."""
        return self._kept.targets

    @property
    def outputs(self) -> list[EpochValues]:
        """The outputs of batches, without graphs. None for a batch whose outputs have no row for each sample, or whose
        pieces came from an iterable."""
        return self._kept.outputs

    @property
    def losses(self) -> list[list[tuple[float, int]]]:
        """``(loss, samples)`` of batches, by epoch and batch. Reading it waits for losses that a GPU is still computing. The
        loss is NaN where your own loop computed it without calling `loss`."""
        losses = self._kept.losses
        write_losses()
        return losses

    def statistics(self) -> list[dict[str, Any]]:
        """The figures of each batch, whatever `keep` is.

        Returns:
            Dictionaries with ``epoch`` and ``batch`` (counted from 0), ``loss`` (None: not
            known, as in `losses`), ``samples``, ``seconds`` (since the batch
            before was done, or the epoch began) and ``samples_per_second`` (None if no time passed). Seconds are the host's:
            since nothing waits for the GPU, they are right only over many batches. ``way`` and ``pieces`` describe how the
            batch was computed (`plan`). ``offloaded_bytes`` are the bytes copied to the host. With several models, ``phase``
            is that of the batch.
        """
        rows = self._kept.records.rows()
        write_losses()
        return rows

    def save_statistics(self, path: str | os.PathLike[str]) -> None:
        """Writes the `statistics` as JSON Lines, a line for each batch. A NaN or infinite loss is written as ``null``."""
        self._kept.records.save(path)

    def clearcontainers_(self) -> None:
        """Empties `inputs`, `targets`, `outputs`, `losses` and `statistics`."""
        self._kept.clear()

    def epochstart_(self) -> None:
        """Begins a new epoch, in loops that you write yourself."""
        self._kept.begin_epoch()
