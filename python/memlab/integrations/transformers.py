"""`MemlabCallback` for Hugging Face's Trainer: GPU memory in its logs, and a report at the end."""

from __future__ import annotations

import atexit
import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.trainer_callback import CallbackHandler

from memlab._logging.loggers import Figures, Sink, active_sinks
from memlab._logging.monitor import Monitor

__all__ = ["MemlabCallback"]


class MemlabCallback(TrainerCallback):  # type: ignore[misc]
    """Logs GPU memory to the Trainer's `report_to`, and writes ``memlab-report.html`` into its output folder at the end.

        trainer = Trainer(…, callbacks=[MemlabCallback()])

    Logs the figures of `memlab.log` for this rank's device each time that the Trainer logs. They go to all of `report_to`
    (TensorBoard, W&B, MLflow and others), beside the loss, but are not printed. Rank 0 logs, its own figures. The report
    compares all ranks whose traces are in one folder. W&B and MLflow keep the report as an artifact. If a training raises,
    its report is written when the program ends.

    Args:
        prefix: put before each name; the Trainer puts ``train/`` before that.
        report: whether to write the report.
    """

    def __init__(self, *, prefix: str = "memlab/", report: bool = True) -> None:
        self._prefix = prefix
        self._report = report
        self._monitor: Monitor | None = None
        self._sinks: list[Sink] = []
        self._folder = Path()
        self._ranks = 1

    def on_train_begin(self, args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            self._monitor = Monitor(self._prefix, args.device.index if args.device.type == "cuda" else None)
            self._folder, self._ranks = Path(args.output_dir), args.world_size
            atexit.register(self._end)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **options: Any) -> None:
        if self._monitor is None:
            return
        reporters = _reporters()
        # MLflow's run may end before `on_train_end` is called.
        self._sinks = active_sinks(self._prefix)

        def write(figures: Figures) -> None:
            for reporter in reporters:
                reporter.on_log(args, state, control, logs=dict(figures), **options)

        self._monitor.log(state.global_step, write)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._end()

    def _end(self) -> None:
        atexit.unregister(self._end)
        if self._monitor is not None and self._report:
            self._monitor.report(self._folder, self._ranks, self._sinks)
        self._monitor = None


def _reporters() -> list[TrainerCallback]:
    """The callbacks of `report_to`. A callback does not know its handler, so this reads the frame of the handler's call.

    It reads no other frame: before CPython 3.13, a frame keeps all objects that `f_locals` copies, even deleted ones.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not CallbackHandler.call_event.__code__:
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return []
    kinds = tuple(INTEGRATION_TO_CALLBACK.values())
    return [callback for callback in frame.f_locals["self"].callbacks if isinstance(callback, kinds)]
