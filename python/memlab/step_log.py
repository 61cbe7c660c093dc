"""`memlab.log`: sends the memory of a step to the training's logger."""

from __future__ import annotations

from typing import Any

from memlab import _native
from memlab._logging.figures import Interval
from memlab._logging.loggers import sinks_of
from memlab._tools import devices
from memlab._tools.devices import Device

_intervals: dict[int, Interval] = {}


def log(step: int | None = None, logger: Any = None, *, prefix: str = "memlab/", device: Device = None) -> dict[str, int]:
    """Logs the memory of a device since the last call, and returns the figures: names and bytes.

        for step, batch in enumerate(loader):
            train(batch)
            if step % 50 == 0:
                memlab.log(step, writer)

    ``peak``, ``growth`` and ``kept`` are those of `memlab.watch`, with the time since the last call as the block: ``peak``
    equals `torch.cuda.max_memory_allocated()` after a reset at the last call. ``allocated``, ``reserved``, ``used``: current
    values. ``peak_reserved``: the maximum since the last call. ``at_peak/parameter`` and so on: by category, at that peak.

    Args:
        step: the step of the figures; None: the number of optimizer steps so far.
        logger: a Lightning logger, a SummaryWriter, a W&B run, ``mlflow`` or an MLflow run, an Accelerator, a function
            of figures and step, or a list of these. None: the active runs of W&B and MLflow, if any.
        prefix: put before each name.
        device: a number, ``"cuda:1"`` or a `torch.device`; None: torch's current device.

    Raises:
        TypeError: `logger` is no logger.

    Without CUDA it returns an empty dict and logs nothing; a line on stderr gives the reason.

    >>> import memlab
    >>> figures = memlab.log(0)
    >>> figures.get("memlab/peak", 0) >= figures.get("memlab/allocated", 0)
    True
    """
    sinks = sinks_of(logger, prefix)
    index = devices.index_of(device)
    figures = {f"{prefix}{name}": nbytes for name, nbytes in _intervals.setdefault(index, Interval(index)).next().items()}
    if figures:
        at = (_native.steps_recorded() or 0) if step is None else step
        for sink in sinks:
            sink.write(figures, at)
    return figures
