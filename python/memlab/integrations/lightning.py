"""`MemlabCallback` for Lightning's Trainer: GPU memory in its loggers, and a report at the end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memlab._logging.loggers import Figures, sinks_of
from memlab._logging.monitor import Monitor

if TYPE_CHECKING or "pytorch_lightning" not in sys.modules or "lightning" in sys.modules:
    from lightning.pytorch import Callback
else:
    from pytorch_lightning import Callback

__all__ = ["MemlabCallback"]


class MemlabCallback(Callback):  # type: ignore[misc]
    """Logs GPU memory to all loggers of the Trainer, and writes ``memlab-report.html`` into its log folder at the end.

        trainer = lightning.Trainer(callbacks=[MemlabCallback()])

    Logs the figures of `memlab.log` for this rank's device: every `every_n_steps` steps, at the end of each epoch and of the
    training, and when the training runs out of memory. Rank 0 logs, its own figures. The report compares all ranks whose
    traces are in one folder. W&B and MLflow keep the report as an artifact.

    Args:
        every_n_steps: None: as often as the Trainer logs (`log_every_n_steps`).
        prefix: put before each name.
        report: whether to write the report.

    Raises:
        ValueError: `every_n_steps` is below 1.
    """

    def __init__(self, every_n_steps: int | None = None, *, prefix: str = "memlab/", report: bool = True) -> None:
        if every_n_steps is not None and every_n_steps < 1:
            raise ValueError(f"every_n_steps={every_n_steps}: must be 1 or more")
        self._every_n_steps = every_n_steps
        self._prefix = prefix
        self._report = report
        self._monitor: Monitor | None = None
        self._folder = Path()
        self._optimizer_steps = 0

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        # Read here, since all ranks must be present to agree on the folder.
        self._folder = Path(trainer.log_dir or trainer.default_root_dir)
        self._optimizer_steps = trainer.global_step
        if trainer.is_global_zero:
            device = trainer.strategy.root_device
            self._monitor = Monitor(self._prefix, device.index if device.type == "cuda" else None)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        # Between two optimizer steps gradients are accumulated.
        if trainer.global_step == self._optimizer_steps:
            return
        self._optimizer_steps = trainer.global_step
        # Lightning counts the batch later, and logs its metrics under this number.
        step = _steps(trainer)
        every = self._every_n_steps or trainer.log_every_n_steps
        if every and (step + 1) % every == 0:
            self._log(trainer, step)

    def on_train_epoch_end(self, trainer: Any, *_: Any) -> None:
        self._log(trainer, _steps(trainer) - 1)

    def on_exception(self, trainer: Any, _module: Any, error: BaseException) -> None:
        if "out of memory" in str(error):
            self._log(trainer, _steps(trainer))
        self._end(trainer)

    def on_train_end(self, trainer: Any, *_: Any) -> None:
        self._end(trainer)

    def _log(self, trainer: Any, step: int) -> None:
        if self._monitor is None:
            return

        def write(figures: Figures) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(dict(figures), step=step)

        self._monitor.log(step, write)

    def _end(self, trainer: Any) -> None:
        if self._monitor is not None and self._report:
            self._monitor.report(self._folder, trainer.world_size, sinks_of(trainer.loggers, self._prefix))
        self._monitor = None


def _steps(trainer: Any) -> int:
    """The batches that the Trainer has counted as steps: the step number of its logs."""
    loop = trainer.fit_loop.epoch_loop
    return int(getattr(loop, "_batches_that_stepped", trainer.global_step))
