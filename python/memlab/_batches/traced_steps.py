"""What a training did in its steps, for the trace of the process, if it is traced."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from memlab import _native
from memlab._batches.pending_losses import PendingLosses
from memlab._batches.records import Record

# Batches of a step, of which the last are noted: some trainings step without telling.
_MOST = 1 << 10

# Of all trainings of the process: losses to come, and the steps that the trace had when one of theirs was told last.
_PENDING = PendingLosses()
_TOLD: list[int] = []


def write_losses() -> None:
    """Writes steps whose losses have come meanwhile."""
    _PENDING.poll()


class TracedSteps:
    """The steps of a training. A step has the batches that were noted since the one before, of the same model.

    Without memlab in the process it does nothing.
    """

    def __init__(self) -> None:
        # By phase: steps of the process when the last of them was noted, and the batches with their losses.
        self._noted: dict[Any, tuple[int, list[tuple[Record, Tensor | None]]]] = {}
        # Steps of an epoch.
        self._epoch = 0
        self._batches = 0

    def begin(self) -> None:
        """A batch begins. What has stepped before are other optimizers."""
        if not _TOLD and (steps := _native.steps_recorded()) is not None:
            _TOLD[:] = [steps]

    def note(self, record: Record, loss: Tensor | None) -> None:
        """A batch is done, whose gradients the next step uses, or has used. None: nobody knows its loss."""
        steps = _native.steps_recorded()
        if steps is None:
            return
        before, batches = self._noted.get(record.phase, (steps, []))
        if before != steps:
            batches = []  # Their step was not told.
        self._noted[record.phase] = (steps, [*batches[-_MOST:], (record, None if loss is None else loss.detach())])

    def step(self, phase: Any) -> None:
        """The optimizer of a phase has stepped."""
        _PENDING.poll()
        _, batches = self._noted.pop(phase, (0, []))
        steps = _native.steps_recorded() or 0
        # One that is not PyTorch's is no step of the trace.
        if not batches or [steps] == _TOLD or steps == 0:
            return
        _TOLD[:] = [steps]
        records = [record for record, _ in batches]
        if records[-1].epoch != self._epoch:
            self._epoch, self._batches = records[-1].epoch, 0
        batch, self._batches = self._batches, self._batches + 1

        def write(loss: float | None) -> None:
            _native.step_trained(
                steps - 1,
                epoch=records[-1].epoch,
                batch=batch,
                phase=None if phase is None else str(phase),
                samples=sum(record.samples for record in records),
                seconds=sum(record.seconds for record in records),
                loss=loss,
                way=records[-1].way,
                pieces=sum(record.pieces for record in records),
                offloaded_nbytes=sum(record.offloaded_nbytes for record in records),
            )

        losses = [(loss, record.samples) for record, loss in batches if loss is not None]
        _PENDING.add(losses if len(losses) == len(batches) else [], write)
