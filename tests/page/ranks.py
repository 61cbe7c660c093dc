"""Processes of a job for tests: each runs the lines that it receives."""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path

from conftest import PYTHON, ROOT
from waiting import wait_until

PROGRAMS = Path(__file__).parent / "programs"


class Nursery:
    """A process that has imported PyTorch and forks ranks, because each import takes seconds."""

    def __init__(self, folder, command=(), env=None):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("MEMLAB", "SIMGPU", "LD_PRELOAD"))}
        environment |= {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"} | (env or {})
        program = [*command, PYTHON, PROGRAMS / "told_rank.py"]
        self.folder = folder
        self.process = subprocess.Popen(program, stdin=subprocess.PIPE, text=True, env=environment)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait()

    def fork(self, to_it, from_it, errors):
        self.process.stdin.write(f"{to_it}\t{from_it}\t{errors}\n")
        self.process.stdin.flush()


class Rank:
    """A process that runs tests/page/programs/told_rank.py."""

    count = 0

    def __init__(self, folder, nursery):
        Rank.count += 1
        to_it, from_it, self.errors = (folder / f"{Rank.count}.{kind}" for kind in ("in", "out", "err"))
        os.mkfifo(to_it)
        os.mkfifo(from_it)
        nursery.fork(to_it, from_it, self.errors)
        self.input = open(to_it, "w")  # noqa: SIM115 (closed in `end`)
        self.output = open(from_it)  # noqa: SIM115
        self.pid = self.answer()

    def tell(self, line):
        """Sends it a line of Python; `answer` waits for the result."""
        self.input.write(line + "\n")
        self.input.flush()

    def answer(self):
        line = self.output.readline()
        assert line, f"the rank ended: {self.errors.read_text()[-3000:]}"
        return json.loads(line)

    def ask(self, line):
        self.tell(line)
        return self.answer()

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)
        wait_until(lambda: not os.path.exists(f"/proc/{self.pid}"))  # The nursery leaves no zombies.

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        for file in (self.input, self.output):
            with contextlib.suppress(BrokenPipeError):
                file.close()


def all_asked(ranks, line):
    """Sends a line to all ranks, then collects their answers."""
    for rank in ranks:
        rank.tell(line)
    return [rank.answer() for rank in ranks]


def names_of(*ranks):
    """Names of the sockets with which these ranks share weights now."""
    sockets = set().union(*map(_sockets, ranks))
    return {name for name, socket in _names() if f"socket:[{socket}]" in sockets}


def is_joining(rank):
    """True while a rank asks for the names of shared weights or waits for one: ranks have no other sockets."""
    return bool(_sockets(rank))


def names_taken():
    """All such names of this user's processes."""
    return {name for name, _ in _names()}


def _sockets(rank):
    found = set()
    for descriptor in os.listdir(f"/proc/{rank.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/{rank.pid}/fd/{descriptor}"))
    return {name for name in found if name.startswith("socket:")}


def _names():
    with open("/proc/net/unix") as lines:
        words = [line.split() for line in lines if f"@memlab/{os.geteuid()}/" in line]
    return [(line[-1], line[-2]) for line in words]
