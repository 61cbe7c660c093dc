"""Runs the memlab command to record a training at some batch sizes, or at three lengths."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from memlab import _native
from memlab._inspection import batches
from memlab._inspection.training import Training
from memlab._inspection.weightless_pickle import packed
from memlab._tools.messages import warn_if_slow

_SLOW = "still recording the model: memlab.inspect starts up to four processes; each imports PyTorch and runs a few steps"
_SLOW_SECONDS = 20
_PACKAGES = Path(__file__).resolve().parent.parent.parent


class InspectionError(RuntimeError):
    """A model could not be recorded. The message contains the output of its steps, or names the missing part.

    >>> import memlab
    >>> issubclass(memlab.InspectionError, RuntimeError)
    True
    """


def recorded(training: Training, sizes: tuple[int, int], card: str, on_gpu: bool) -> _native.PlanFamily:
    """Runs the training at two batch sizes and, on a simulated card, at a large one, each in a separate process.

    Raises:
        InspectionError: the training fails there.
        UnpicklableModelError: the training cannot be pickled.
    """
    with _packed(training) as folder:
        options: list[object] = ["--keep", folder, "--batch", ",".join(map(str, sizes))]
        answer = _planned(folder, training, options, ["{batch}"], card, on_gpu)
        traces = [(batch, folder / f"batch-{batch}.jsonl") for batch in answer["recorded_batches"]]
        return _native.PlanFamily(traces, str(_PACKAGES / "memlab"))


def recorded_lengths(training: Training, rows: int, lengths: Sequence[int], card: str, on_gpu: bool) -> dict[str, Any]:
    """The plan for steps of these lengths with this number of rows, as in the JSON of `memlab plan`.

    Raises:
        InspectionError: the training fails.
        UnpicklableModelError: the training cannot be pickled.
    """
    with _packed(training) as folder:
        file = folder / "lengths.txt"
        file.write_text("\n".join(map(str, lengths)))
        answer = _planned(folder, training, ["--lengths", file, "--batch", rows], ["{batch}", "{length}"], card, on_gpu)
    sequence: dict[str, Any] = answer["sequence"]
    return sequence


@contextlib.contextmanager
def _packed(training: Training) -> Iterator[Path]:
    """A temporary folder that contains the pickled training."""
    content = packed(training.model, training, list(batches.tensors_in(training.batch)))
    with tempfile.TemporaryDirectory(prefix="memlab-inspect-") as name:
        folder = Path(name)
        (folder / "training.pickle").write_bytes(content)
        yield folder


def _planned(
    folder: Path, training: Training, options: list[object], arguments: list[str], card: str, on_gpu: bool
) -> dict[str, Any]:
    """The plan of the training in a folder, as JSON."""
    program = [sys.executable, "-m", "memlab._inspection.child", folder / "training.pickle", *arguments]
    # The recording ends when the last step but one is complete: it contains one step less than the training.
    options = [*options, "--json", "--steps", training.steps - 1, "--card", card, "--on", "gpu" if on_gpu else "simulation"]
    with warn_if_slow(_SLOW, _SLOW_SECONDS):
        done = subprocess.run(
            [str(part) for part in [sys.executable, "-m", "memlab", "plan", *options, "--", *program]],
            capture_output=True,
            text=True,
            env=_environment(on_gpu),
            check=False,
        )
    if done.returncode != 0:
        raise InspectionError(done.stderr.strip().removeprefix("memlab: "))
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _environment(on_gpu: bool) -> dict[str, str]:
    environment = dict(os.environ)
    if not on_gpu:
        environment.pop("CUDA_VISIBLE_DEVICES", None)  # The one simulated card is visible even if real cards are hidden.
    others = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(_PACKAGES), *([others] if others else [])])
    return environment
