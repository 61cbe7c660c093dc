"""The steps of a training, written to the trace of the process if it is traced."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from memlab import _native
from memlab._batches.pending_losses import PendingLosses
from memlab._batches.records import Record

# Maximum of batches kept per step, the last ones: some trainings never report a step.
_MOST = 1 << 10

# For all trainings of the process: pending losses, and the trace's step count when a training last reported a step.
_PENDING = PendingLosses()
_TOLD: list[int] = []


def write_losses() -> None:
    """Writes the steps whose losses have arrived."""
    _PENDING.poll()


class TracedSteps:
    """The steps of a training. A step has the batches recorded since the previous step of the same model.

    Without memlab in the process it does nothing.
    """

    def __init__(self) -> None:
        # By phase: step count of the process at the last batch, and the batches with their losses.
        self._noted: dict[Any, tuple[int, list[tuple[Record, Tensor | None]]]] = {}
        # The epoch, and the steps in it.
        self._epoch = 0
        self._batches = 0

    def begin(self) -> None:
        """Begins a batch. Steps before the first batch belong to other optimizers."""
        if not _TOLD and (steps := _native.steps_recorded()) is not None:
            _TOLD[:] = [steps]

    def note(self, record: Record, loss: Tensor | None) -> None:
        """Records a completed batch, whose gradients the next step uses, or has used. `loss`: None: not known."""
        steps = _native.steps_recorded()
        if steps is None:
            return
        before, batches = self._noted.get(record.phase, (steps, []))
        if before != steps:
            batches = []  # Their step was not reported.
        self._noted[record.phase] = (steps, [*batches[-_MOST:], (record, None if loss is None else loss.detach())])

    def step(self, phase: Any) -> None:
        """Records a step of a phase's optimizer."""
        _PENDING.poll()
        _, batches = self._noted.pop(phase, (0, []))
        steps = _native.steps_recorded() or 0
        # Steps of optimizers that are not PyTorch's are not in the trace.
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
