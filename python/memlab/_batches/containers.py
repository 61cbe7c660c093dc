"""The part of `memlab.InfinityBatch` that remembers batches."""

from __future__ import annotations

import os
from typing import Any

from memlab._batches.disk_store import EpochValues
from memlab._batches.kept_batches import KeptBatches
from memlab._batches.traced_steps import write_losses


class Containers:
    """What is kept of batches, by epoch and batch, and their figures."""

    _kept: KeptBatches

    @property
    def keep(self) -> str:
        """What the containers hold. Setting it empties them."""
        return self._kept.policy

    @keep.setter
    def keep(self, policy: str) -> None:
        before: KeptBatches | None = vars(self).get("_kept")
        folder = before.folder if before is not None and policy == "disk" else None
        self._kept = KeptBatches(policy, None if before is None else before.nbytes, folder)

    @property
    def keep_nbytes(self) -> int | None:
        """Bytes that inputs, targets and outputs may take. None: as many as there are."""
        return self._kept.nbytes

    @keep_nbytes.setter
    def keep_nbytes(self, nbytes: str | int | None) -> None:
        self._kept.bound(nbytes)

    @property
    def inputs(self) -> list[EpochValues]:
        """The inputs of batches, by epoch and batch. None: they were dropped, as there were too many bytes."""
        return self._kept.inputs

    @property
    def targets(self) -> list[EpochValues]:
        """Their targets."""
        return self._kept.targets

    @property
    def outputs(self) -> list[EpochValues]:
        """Their outputs, without graphs. None: they have no row for each sample, or an iterable gave the batch in pieces."""
        return self._kept.outputs

    @property
    def losses(self) -> list[list[tuple[float, int]]]:
        """``(loss, samples)`` of batches, by epoch and batch. Reading it waits for those that a GPU has not computed yet. A
        loss that a loop of one's own has computed itself, not by `loss`, is NaN."""
        losses = self._kept.losses
        write_losses()
        return losses

    def statistics(self) -> list[dict[str, Any]]:
        """The figures of each batch, whatever `keep` is.

        Returns:
            Dictionaries with ``epoch`` and ``batch`` (counted from 0), ``loss`` (None: not
            known, as in `losses`), ``samples``, ``seconds`` (since the batch
            before was done, or the epoch began) and ``samples_per_second`` (None if no time passed). Seconds are the host's:
            since nothing waits for the GPU, they are right over many batches. ``way`` and ``pieces`` are how it was computed
            (`plan`), ``offloaded_bytes`` what was copied to the host. With several models, ``phase`` is that of the batch.
        """
        rows = self._kept.records.rows()
        write_losses()
        return rows

    def save_statistics(self, path: str | os.PathLike[str]) -> None:
        """Writes the `statistics` as JSON Lines: a line for each batch. A loss that is no number is ``null``."""
        self._kept.records.save(path)

    def clearcontainers_(self) -> None:
        """Empties `inputs`, `targets`, `outputs`, `losses` and `statistics`."""
        self._kept.clear()

    def epochstart_(self) -> None:
        """What follows belongs to another epoch: for loops of one's own."""
        self._kept.begin_epoch()
