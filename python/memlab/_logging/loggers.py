"""Adapters for loggers: each takes figures at a step, and the report at the end, in its own way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Protocol

Figures = Mapping[str, int]


class Sink(Protocol):
    """A destination of figures."""

    def write(self, figures: Figures, step: int) -> None:
        """Logs the figures of a step."""

    def add_report(self, path: Path) -> None:
        """Stores the report, or logs its path."""


def sinks_of(logger: Any, prefix: str) -> list[Sink]:
    """The sinks of a logger, or of several; None: of the active runs in this process. Names begin with `prefix`.

    Raises TypeError for an object that is no logger.
    """
    if logger is None:
        return active_sinks(prefix)
    if isinstance(logger, (list, tuple)):
        return [sink for one in logger for sink in sinks_of(one, prefix)]
    package = _package(logger)
    if package == "wandb":
        return [_Wandb(_run_of(logger), prefix)]
    if package == "mlflow":
        return [_Mlflow(_run_of(logger))]
    for method, kind in (("log_metrics", _Metrics), ("add_scalar", _TensorBoard), ("log", _Log)):
        if hasattr(logger, method):
            return [kind(logger)]
    if callable(logger):
        return [_Function(logger)]
    raise TypeError(
        f"memlab.log does not support a {type(logger).__name__}: pass a Lightning logger, a SummaryWriter, a W&B run, "
        "mlflow, an Accelerator, or a function of figures and step"
    )


def active_sinks(prefix: str) -> list[Sink]:
    """The active runs of W&B and MLflow in this process. Imports neither."""
    wandb, mlflow = sys.modules.get("wandb"), sys.modules.get("mlflow")
    sinks: list[Sink] = []
    if wandb is not None and _active(wandb) is not None:
        sinks.append(_Wandb(_active(wandb), prefix))
    if mlflow is not None and _active(mlflow) is not None:
        sinks.append(_Mlflow(_active(mlflow)))
    return sinks


def _package(logger: Any) -> str:
    name: str = logger.__name__ if isinstance(logger, ModuleType) else type(logger).__module__
    return name.partition(".")[0]


def _active(package: ModuleType) -> Any:
    """The active run of `wandb` or `mlflow`; None: no run is active, or the package is being imported."""
    active = getattr(package, "active_run", None)
    return active() if active is not None else getattr(package, "run", None)


def _run_of(logger: Any) -> Any:
    if not isinstance(logger, ModuleType):
        return logger
    run = _active(logger)
    if run is None:
        begin = {"wandb": "wandb.init()", "mlflow": "mlflow.start_run()"}[logger.__name__]
        raise TypeError(f"{logger.__name__} has no active run for memlab.log: call {begin} first")
    return run


class _Wandb:
    """A run of Weights & Biases."""

    _with_axis: ClassVar[set[tuple[str, str]]] = set()

    def __init__(self, run: Any, prefix: str) -> None:
        self._run, self._prefix = run, prefix

    def write(self, figures: Figures, step: int) -> None:
        # W&B's step rises with each row of any logger. So memlab logs its step as a figure, and as the axis of the others.
        axis = f"{self._prefix}step"
        if (self._run.id, axis) not in self._with_axis:
            self._with_axis.add((self._run.id, axis))
            self._run.define_metric(f"{self._prefix}*", step_metric=axis)
        self._run.log({**figures, axis: step})

    def add_report(self, path: Path) -> None:
        wandb: Any = sys.modules["wandb"]
        artifact = wandb.Artifact(f"memlab-report-{self._run.id}", type="memlab-report")
        artifact.add_file(str(path), name=path.name)
        self._run.log_artifact(artifact)


class _Mlflow:
    """A run of MLflow, which may have ended."""

    def __init__(self, run: Any) -> None:
        self._run_id = run.info.run_id
        self._mlflow: Any = sys.modules["mlflow"]

    def write(self, figures: Figures, step: int) -> None:
        self._mlflow.log_metrics(dict(figures), step=step, run_id=self._run_id)

    def add_report(self, path: Path) -> None:
        self._mlflow.log_artifact(str(path), run_id=self._run_id)


class _TensorBoard:
    """A SummaryWriter, of PyTorch or of tensorboardX."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, figures: Figures, step: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def add_report(self, path: Path) -> None:
        self._writer.add_text("memlab/report", str(path))


class _Metrics:
    """Objects with `log_metrics`: Lightning's loggers, Comet's experiments."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def write(self, figures: Figures, step: int) -> None:
        self._logger.log_metrics(dict(figures), step=step)

    def add_report(self, path: Path) -> None:
        experiment = getattr(self._logger, "experiment", None)
        package = _package(experiment)
        if package == "wandb":
            _Wandb(experiment, "").add_report(path)
        elif package == "mlflow" and experiment is not None:
            experiment.log_artifact(self._logger.run_id, str(path))
        elif hasattr(experiment, "add_text"):
            _TensorBoard(experiment).add_report(path)


class _Log:
    """Objects with `log`: an Accelerator of Hugging Face, and its trackers. They accept no files."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def write(self, figures: Figures, step: int) -> None:
        self._logger.log(dict(figures), step=step)

    def add_report(self, path: Path) -> None:
        pass


class _Function:
    """A function of figures and step."""

    def __init__(self, function: Callable[[dict[str, int], int], Any]) -> None:
        self._function = function

    def write(self, figures: Figures, step: int) -> None:
        self._function(dict(figures), step)

    def add_report(self, path: Path) -> None:
        pass
