"""Helpers for the end-to-end tests: run programs under memlab on the simulated GPU and read the traces."""

import gc
import json
import os
import subprocess
import sys
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RELEASE = ROOT / "target" / "release"
PROGRAMS = ROOT / "tests" / "programs"

# Tests without injected failures and without a required card size can run on a real GPU, one at a time:
#
#     MEMLAB_ON_GPU=1 python -m pytest tests/test_moving.py -k "eight_threads or random_pages or trainings"
ON_GPU = bool(os.environ.get("MEMLAB_ON_GPU"))

# The Python that runs the programs: `tests/versions.sh` sets others, with older versions of PyTorch.
PYTHON = os.environ.get("MEMLAB_PYTHON", sys.executable)

# A race in PyTorch and CPython before 3.14, also without memlab: an autograd thread that requests the GIL while the
# interpreter is finalizing is ended in a C++ function that must not be unwound. The simulated card prevents it (see
# simgpu/runtime/src/thread_exit.rs); on a real one such a run is repeated.
INTERPRETER_SHUTDOWN_RACE = "terminate called without an active exception"


@dataclass
class Run:
    """A program that ran under memlab."""

    code: int
    output: str
    errors: str
    folder: Path

    @property
    def traces(self):
        return sorted(self.folder.glob("*.jsonl"))

    @property
    def trace(self):
        (trace,) = self.traces
        return trace


class Memlab:
    """Runs programs in a folder for one test."""

    library = RELEASE / "libmemlab.so"
    command = RELEASE / "memlab"
    simgpu = ROOT / "simgpu" / "simgpu"

    def __init__(self, folder):
        self.folder = folder
        self.started = []

    def environment(self, **more):
        # PYTEST_ADDOPTS would have a test's own pytest repeat failures as this one does.
        others = ("MEMLAB", "SIMGPU", "LD_PRELOAD", "PYTEST_")
        keep = {k: v for k, v in os.environ.items() if not k.startswith(others)}
        # Two test programs run at a time on a small machine: more threads would slow both.
        keep |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        return keep | {name: str(value) for name, value in more.items()}

    def start(self, *command, simgpu=(), memory="8GiB", devices=1, preload=True, env=None, **options):
        """Starts `command` under LD_PRELOAD=libmemlab.so on simulated cards."""
        options = {"cwd": self.folder, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        wrapped = [self.simgpu, "--memory", memory, "--devices", str(devices), *simgpu, *command]
        if ON_GPU:
            wrapped = [*command]
        environment = self.environment(**({"LD_PRELOAD": self.library} if preload else {}), **(env or {}))
        self.started.append(subprocess.Popen([str(part) for part in wrapped], env=environment, **options))
        return self.started[-1]

    def run(self, *command, timeout=300, **options):
        before = set(self.folder.glob("*.jsonl"))
        for _ in range(3 if ON_GPU else 1):
            process = self.start(*command, **options)
            output, errors = process.communicate(timeout=timeout)
            if process.returncode != -6 or INTERPRETER_SHUTDOWN_RACE not in errors:
                break
            for trace in self.folder.glob("*.jsonl"):
                if trace not in before:
                    trace.unlink()
        return Run(process.returncode, output, errors, self.folder)

    def python(self, *arguments, **options):
        return self.run(PYTHON, *arguments, **options)

    def report(self, trace):
        done = subprocess.run(
            [self.command, "report", trace, "--json"], capture_output=True, text=True, env=self.environment()
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def memlab(tmp_path):
    assert Memlab.library.exists(), "build first: cargo build --release --workspace"
    memlab = Memlab(tmp_path)
    yield memlab
    # A failed test can leave a program that waits forever.
    for process in memlab.started:
        if process.poll() is None:
            subprocess.run(["pkill", "-KILL", "-P", str(process.pid)], check=False)
            process.kill()


@pytest.fixture
def rows():
    """Reports rows of the CPU by name, for a `memlab.MemReporter`. Warnings are errors."""

    def collect(reporter):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return {row.name: row for row in reporter.collect("cpu").devices["cpu"].tensors}

    return collect


def strands():
    """Threads of micro-batches in lockstep."""
    return [thread for thread in threading.enumerate() if thread.name == "memlab strand"]


@pytest.fixture(autouse=True)
def no_strand_is_left():
    """Micro-batches end with the last object that could ask for them."""
    before = set(strands())
    yield
    if set(strands()) - before:
        gc.collect()
    assert not set(strands()) - before


@pytest.fixture(scope="module")
def in_double_precision():
    """Tensors of this file's tests are made in float64."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
