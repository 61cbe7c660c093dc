"""Has the command record a training at two batch sizes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from memlab import _native
from memlab._inspection import batches
from memlab._inspection.structure import packed
from memlab._inspection.training import Training

_PACKAGES = Path(__file__).resolve().parent.parent.parent


class InspectionError(RuntimeError):
    """A model could not be recorded: says what its steps printed, or what is missing.

    >>> import memlab
    >>> issubclass(memlab.InspectionError, RuntimeError)
    True
    """


def recorded(training: Training, sizes: tuple[int, int], card: str, on_gpu: bool) -> _native.PlanFamily:
    """Runs the training twice, in processes of their own.

    Raises:
        InspectionError: it fails there.
        CannotTravel: it cannot be pickled.
    """
    low, high = sorted(sizes)
    content = packed(training.model, training, list(batches.tensors_in(training.batch)))
    with tempfile.TemporaryDirectory(prefix="memlab-inspect-") as name:
        folder = Path(name)
        (folder / "training.pickle").write_bytes(content)
        program = [sys.executable, "-m", "memlab._inspection.child", folder / "training.pickle", "{batch}"]
        # The last of the training's steps is not in the recording, which ends when the one before it is complete.
        options = ["--keep", folder, "--json", "--batch", f"{low},{high}", "--steps", training.steps - 1, "--card", card]
        options += ["--predict", high]  # Without it, a larger batch is recorded too, which is not used here.
        where = ["--on", "gpu" if on_gpu else "simulation"]
        command = [sys.executable, "-m", "memlab", "plan", *options, *where, "--", *program]
        done = subprocess.run(
            [str(part) for part in command], capture_output=True, text=True, env=_environment(on_gpu), check=False
        )
        if done.returncode != 0:
            raise InspectionError(done.stderr.strip().removeprefix("memlab: "))
        traces = [folder / f"batch-{size}.jsonl" for size in (low, high)]
        return _native.PlanFamily(traces[0], low, traces[1], high)


def _environment(on_gpu: bool) -> dict[str, str]:
    environment = dict(os.environ)
    if not on_gpu:
        environment.pop("CUDA_VISIBLE_DEVICES", None)  # There is one simulated card, also where no real one may be used.
    others = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(_PACKAGES), *([others] if others else [])])
    return environment
