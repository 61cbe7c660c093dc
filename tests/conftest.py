"""Helpers for the end-to-end tests: run programs under memlab on the simulated GPU and read the traces."""

import gc
import itertools
import json
import os
import subprocess
import sys
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from prefork import Server

# Test programs and pytest's own processes run two at a time: more threads of PyTorch would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent
RELEASE = ROOT / "target" / "release"

# Tests without injected failures and without a required card size can run on a real GPU, one at a time:
#
#     MEMLAB_ON_GPU=1 python -m pytest tests/move/test_moving.py -k "eight_threads or random_pages or trainings"
ON_GPU = bool(os.environ.get("MEMLAB_ON_GPU"))

# The Python that runs the programs: `tests/versions.sh` sets others, with older versions of PyTorch.
PYTHON = os.environ.get("MEMLAB_PYTHON", sys.executable)


def runs_the_package(python):
    """Returns true if this Python is new enough for the package memlab."""
    command = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 10))"]
    return subprocess.run(command, check=False).returncode == 0


# A race in PyTorch and CPython before 3.14, also without memlab: an autograd thread that requests the GIL while the
# interpreter is finalizing is ended in a C++ function that must not be unwound. The simulated card prevents it (see
# simgpu/runtime/src/thread_exit.rs); on a real one such a run is repeated.
INTERPRETER_SHUTDOWN_RACE = "terminate called without an active exception"

# Printed by forked.py after each program.
END_OF_PROGRAM = "\x1e\n"


# Prefixes of variables that libraries read when they are loaded. The exceptions are read later, or handled by the prefork
# server.
READ_EARLY = ("CUDA", "LD_", "MEMLAB", "NV", "OMP_", "PYTHON", "PYTORCH", "SIMGPU")
READ_LATE = {"MEMLAB_OUTPUT", "PYTHONPATH", "PYTHONWARNINGS"} | {"SIMGPU_CARD", "SIMGPU_MEMORY", "SIMGPU_DEVICES"}
# Each combination of these has a prefork server.
OF_SERVERS = {"MEMLAB_OFFLOAD": "1", "MEMLAB_TIME": "1"}
card_tables = itertools.count()


def forkable(command, simgpu=(), memory="8GiB", devices=1, preload=True, env=None, **options):
    """The library and variables of a command's prefork server, and the environment of its child; None if it needs a fresh
    start."""
    env = {name: str(value) for name, value in (env or {}).items()}
    is_program = len(command) > 1 and str(command[0]) == PYTHON and str(command[1]).endswith((".py", "-c", "-m"))
    named_card = simgpu[1] if len(simgpu) == 2 and simgpu[0] == "--card" else None
    of_server = {name: value for name, value in env.items() if OF_SERVERS.get(name) == value} if preload else {}
    is_late = all(name in READ_LATE or name in of_server or not name.startswith(READ_EARLY) for name in env)
    if options or not is_program or (simgpu and not named_card) or not is_late:
        return None
    table = f"/dev/shm/simgpu-cards-{os.getuid()}-{os.getpid()}-{next(card_tables)}"
    cards = {"SIMGPU_CARDS": table, "SIMGPU_MEMORY": memory, "SIMGPU_DEVICES": str(devices)}
    cards |= {"SIMGPU_CARD": named_card} if named_card else {}
    return (preload, tuple(sorted(of_server.items()))), cards | env


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
        # With PYTEST_ADDOPTS, a test's own pytest would repeat failures as this one does.
        others = ("MEMLAB", "SIMGPU", "LD_PRELOAD", "PYTEST_")
        keep = {k: v for k, v in os.environ.items() if not k.startswith(others)}
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

    def run(self, *command, timeout=300, fresh=False, **options):
        """Runs a command to its end; a Python program runs in a forked child (prefork.py) if that makes no difference.
        `fresh` starts a new interpreter: for tests of a program's start, end, environment, command line or full stacks."""
        if not fresh and not ON_GPU and (request := forkable(command, **options)):
            kind, environment = request
            arguments = [str(part) for part in command[1:]]
            try:
                code, output, errors = self._server(*kind).run(arguments, self.folder, environment, timeout)
                return Run(code, output, errors, self.folder)
            finally:
                Path(environment["SIMGPU_CARDS"]).unlink(missing_ok=True)
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

    servers: ClassVar[dict] = {}

    def _server(self, preload, variables):
        """The prefork server of this pytest process with these variables, with libmemlab.so preloaded or without."""
        kind = preload, variables
        if kind not in self.servers:
            environment = self.environment(**({"LD_PRELOAD": self.library} if preload else {}), **dict(variables))
            self.servers[kind] = Server([str(self.simgpu), PYTHON], environment)
        return self.servers[kind]

    def python(self, *arguments, **options):
        return self.run(PYTHON, *arguments, **options)

    def each(self, *commands, environments=None, **options):
        """Returns the last line of each program's output, parsed as JSON. Commands are `(PROGRAM, ARGUMENT, …)`. They run
        without memlab, one after the other, each in a separate process. They share imports, which take most of a small
        program's time."""
        texts = [[str(part) for part in command] for command in commands]
        runs = list(zip(environments or [{}] * len(texts), texts, strict=True))
        done = self.python(ROOT / "tests" / "forked.py", json.dumps(runs), preload=False, **options)
        assert done.code == 0, done.errors
        return [json.loads(output.splitlines()[-1]) for output in done.output.split(END_OF_PROGRAM)[:-1]]

    def report(self, trace):
        done = subprocess.run(
            [self.command, "report", trace, "--json"], capture_output=True, text=True, env=self.environment()
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="the long tests, and no others: see tests/long.py")
    parser.addoption("--full", action="store_true", help="all tests, as `make test-full` runs them")


def pytest_configure(config):
    if not config.option.full:
        os.environ["LAZY_TORCH_COMPILER"] = "1"  # See lazy_compiler/.
    config.addinivalue_line("markers", "long: takes long, or repeats a mechanism that another test shows: `make test-long`")
    config.addinivalue_line("markers", "programs: starts programs without the fixture `memlab`: its further cases are long")
    config.addinivalue_line("markers", "full: one more case of what others test too; runs with --full, or by its name")


def pytest_collection_modifyitems(config, items):
    """Leaves out the tests of other tiers, unless a test is named. The first case of a test that starts programs is short,
    its others are long; all cases of other tests are short."""
    if config.option.full or any("::" in argument for argument in config.args):
        return
    seen, chosen, left_out = set(), list[pytest.Item](), list[pytest.Item]()
    for item in items:
        is_full = item.get_closest_marker("full")
        test = (item.path, item.originalname)
        starts_programs = "memlab" in item.fixturenames or item.get_closest_marker("programs")
        is_long = item.get_closest_marker("long") or (starts_programs and test in seen)
        if not is_full:
            seen.add(test)
        fits = not is_full and bool(is_long) == config.option.long
        (chosen if fits else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = chosen


def full(*cases):
    """Cases that run with --full only."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.full) for case in cases]


@pytest.fixture(scope="module", autouse=True)
def garbage_of_this_module_only():
    """Hides imported objects from the garbage collector. memlab collects before it retries a batch, which takes a third of a
    second with all imports of these tests."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


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


def microbatch_threads():
    """Threads of micro-batches in lockstep."""
    return [thread for thread in threading.enumerate() if thread.name == "memlab micro-batch"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """Asserts that micro-batch threads end with the last object that could ask for them."""
    before = set(microbatch_threads())
    yield
    if set(microbatch_threads()) - before:
        gc.collect()
    assert not set(microbatch_threads()) - before


@pytest.fixture(scope="module")
def in_double_precision():
    """Creates the tensors of this file's tests in float64."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)
