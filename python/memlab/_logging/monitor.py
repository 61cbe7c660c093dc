"""The shared work of trainer callbacks: logging, and writing the report at the end.

Errors here never end a training: each is reported once, in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from memlab._logging.figures import Interval
from memlab._logging.html_report import write_report
from memlab._logging.loggers import Figures, Sink
from memlab._tools.messages import warn_once

REPORT_NAME = "memlab-report.html"


class Monitor:
    """The memory of one training."""

    def __init__(self, prefix: str, device: int | None) -> None:
        self._prefix = prefix
        self._interval = Interval(device)
        self._interval.begin()
        self._logged: int | None = None

    def log(self, step: int, write: Callable[[Figures], None]) -> None:
        """Writes the figures since the last call, once for each step. Later events belong to the next figures."""
        if step == self._logged:
            return
        self._logged = step
        figures = {f"{self._prefix}{name}": nbytes for name, nbytes in self._interval.next().items()}
        if figures:
            _guarded("memory is not logged", partial(write, figures))

    def report(self, folder: Path, ranks: int, sinks: Iterable[Sink]) -> None:
        """Writes the report into a folder, and passes it to the loggers."""
        path = write_report(folder / REPORT_NAME, ranks)
        if path is not None:
            for sink in sinks:
                _guarded("the logger did not get the report", partial(sink.add_report, path))


def _guarded(what: str, do: Callable[[], None]) -> None:
    try:
        do()
    except Exception as error:  # Loggers may raise any exception.
        warn_once(f"{what}: {type(error).__name__}: {error}")
