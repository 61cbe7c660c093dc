"""Shared by the checks: runs programs under memlab, collects results and keeps the time."""

import ast
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
RELEASE = ROOT / "target" / "release"
TESTS = ROOT / "tests"
SEE, KNOW, MOVE, PAGE = (TESTS / feature / "programs" for feature in ("see", "know", "move", "page"))
HELPERS = TESTS / "batches"
OWN_PROGRAMS = Path(__file__).resolve().parent / "programs"
LIBRARY = RELEASE / "libmemlab.so"
MEMLAB = RELEASE / "memlab"

sys.path[:0] = [str(TESTS), str(TESTS / "move"), str(HELPERS)]

# A race in PyTorch and CPython before 3.14, also without memlab, about once in sixty runs: the finalizing interpreter
# ends an autograd thread that requests the GIL, in a C++ function that must not be unwound.
INTERPRETER_SHUTDOWN_RACE = "terminate called without an active exception"
# Keeps this many traces of failed checks, up to this size compressed.
KEPT_TRACES = 4
KEPT_BYTES = 8 << 20


@dataclass
class Check:
    name: str
    passed: bool | None  # None: skipped
    detail: str
    seconds: float = 0.0


class Failed(Exception):
    """A check cannot continue; the message states the reason."""


class Run:
    """A finished program."""

    def __init__(self, code, output, errors, folder):
        self.code, self.output, self.errors, self.folder = code, output, errors, folder

    @property
    def trace(self):
        traces = sorted(self.folder.glob("*.jsonl"))
        if len(traces) != 1:
            raise Failed(f"{len(traces)} traces instead of one; stderr: {self.errors[-2000:]}")
        return traces[0]


class Harness:
    def __init__(self, out, seconds):
        self.out = Path(out)
        self.simgpu = os.path.abspath(os.environ["SIMGPU"]) if os.environ.get("SIMGPU") else None
        self.work = Path(tempfile.mkdtemp(prefix="memlab-on-gpu-"))
        self.checks = []
        self.notes = {}
        self.kept = 0
        self.lock = threading.Lock()
        self.machine = {}
        self.fresh = True  # True until the first log line.
        self.start = time.monotonic()
        self.deadline = self.start + seconds
        self.devices = 0

    @property
    def simulated(self):
        return self.simgpu is not None

    def log(self, text):
        with self.lock:
            print(text, flush=True)
            self.out.mkdir(parents=True, exist_ok=True)
            with open(self.out / "log.txt", "w" if self.fresh else "a") as log:
                log.write(text + "\n")
            self.fresh = False

    def rows(self, folder, program, *arguments):
        """Runs a program of this folder without memlab's library, records its JSON lines and returns them."""
        env = {"PYTHONPATH": f"{ROOT / 'python'}:{SEE}:{KNOW}:{MOVE}:{PAGE}:{TESTS}:{HELPERS}"}
        run = self.run(folder, sys.executable, OWN_PROGRAMS / program, *arguments, memlab=False, env=env, timeout=240)
        if run.code != 0:
            raise Failed(run.errors[-3000:])
        rows = [json.loads(line) for line in run.output.splitlines() if line.startswith("{")]
        self.note(" ".join([program, *arguments]), rows)
        return rows

    def note(self, name, value):
        """Records a measurement that no check judges."""
        self.notes[name] = value
        self.log(f"     {name}: {value if isinstance(value, str) else json.dumps(value)}")

    def check(self, name, passed, detail="", seconds=0.0):
        self.checks.append(Check(name, passed, detail, round(seconds, 1)))
        word = {True: "ok  ", False: "FAIL", None: "skip"}[passed]
        self.log(f"{word} {name} ({seconds:.1f} s)" + (f"\n     {detail}" if detail else ""))
        self.save()

    def left(self):
        return self.deadline - time.monotonic()

    def guard(self, name, check, *arguments):
        """Runs one check. It returns its errors (none if it passed) or a `Skip`, and may raise."""
        start = time.monotonic()
        folder = self.work / re.sub(r"[^\w.-]", "_", name)
        folder.mkdir()
        passed: bool | None = False
        try:
            if self.left() < 5:
                raise Failed("no time is left")
            wrong = check(self, folder, *arguments)
            if isinstance(wrong, Skip):
                passed, detail = None, wrong.why
            else:
                passed, detail = not wrong, "\n     ".join(wrong[:8])
        except Failed as failed:
            detail = str(failed)
        except subprocess.TimeoutExpired as expired:
            detail = f"took longer than {expired.timeout:.0f} s: {expired.cmd}"
        except Exception:  # A failing check must not stop the others.
            detail = traceback.format_exc()
        self.check(name, passed, detail, time.monotonic() - start)
        if passed is False:
            self.keep_traces(folder)
        shutil.rmtree(folder, ignore_errors=True)

    def keep_traces(self, folder):
        for trace in sorted(folder.rglob("*.jsonl")):
            with self.lock:
                if self.kept >= KEPT_TRACES:
                    return
                packed = gzip.compress(trace.read_bytes())
                if len(packed) <= KEPT_BYTES:
                    self.kept += 1
                    (self.out / f"{folder.name}-{trace.name}.gz").write_bytes(packed)

    def environment(self, memlab, more):
        own = ("MEMLAB", "SIMGPU", "LD_PRELOAD", "CUDA_INJECTION", "CUPTI_", "PYTORCH_")
        keep = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        keep |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        keep |= {name: str(value) for name, value in more.items()}
        if memlab:
            keep["LD_PRELOAD"] = ":".join(filter(None, [str(LIBRARY), keep.get("LD_PRELOAD")]))
        return keep

    def run(self, folder, *command, memlab=True, simulated=True, devices=1, timeout=120, env=None):
        """Runs a program with or without memlab, on the GPU or (with `simulated`, if asked for) on the simulated one."""
        if self.simgpu and simulated:
            command = (self.simgpu, "--memory", "8GiB", "--devices", devices, *command)
        for _ in range(3):
            code, output, errors = self.once(
                [str(part) for part in command], folder, self.environment(memlab, env or {}), timeout
            )
            if code != -signal.SIGABRT or INTERPRETER_SHUTDOWN_RACE not in errors:
                break
            for trace in folder.glob("*.jsonl"):
                trace.unlink()
        return Run(code, output, errors, folder)

    def once(self, command, folder, environment, timeout):
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        try:
            output, errors = process.communicate(timeout=max(1, min(timeout, self.left())))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # Includes its children.
            process.communicate()
            raise
        return process.returncode, output, errors

    def python(self, folder, *arguments, quiet=True, **options):
        """Runs a Python program that must succeed without a message from memlab."""
        run = self.run(folder, sys.executable, *arguments, **options)
        if run.code != 0:
            raise Failed(f"exit status {run.code}: {run.errors[-3000:]}")
        if quiet and "memlab:" in run.errors:
            raise Failed(f"memlab complained: {run.errors[-3000:]}")
        return run

    def report(self, trace):
        done = subprocess.run([MEMLAB, "report", trace, "--json"], capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise Failed(f"memlab report: {done.stderr}")
        return json.loads(done.stdout)

    def compile(self, source, program, *flags):
        command = ["cc", "-O2", "-o", str(program), str(source), *map(str, flags), "-ldl", "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)}: {done.stderr[-2000:]}")
        return program

    def save(self):
        """Writes the summary so far, because the run may be stopped early."""
        checks = list(self.checks)
        passed = all(check.passed is not False for check in checks) and any(check.passed for check in checks)
        summary = {
            "passed": passed,
            "simulated": self.simulated,
            "seconds": round(time.monotonic() - self.start, 1),
            "machine": self.machine,
            "checks": [asdict(check) for check in checks],
            "notes": self.notes,
        }
        with self.lock:
            (self.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
        return passed

    def finish(self):
        passed = self.save()
        counts = [sum(check.passed is kind for check in self.checks) for kind in (True, False, None)]
        seconds = time.monotonic() - self.start
        self.log("{} passed, {} failed, {} skipped in {:.0f} s; see {}".format(*counts, seconds, self.out))
        self.close()
        return passed

    def close(self):
        shutil.rmtree(self.work, ignore_errors=True)


@dataclass
class Skip:
    """Result of a check that this machine cannot run."""

    why: str


def constant(test, name):
    """Reads a list at the top of a test file without importing the file."""
    for statement in ast.parse(test.read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            return ast.literal_eval(statement.value)
    raise LookupError(f"{test} has no {name}")


def difference(what, found, expected):
    """Describes the difference; empty if none."""
    return [] if found == expected else [f"{what}: {found} instead of {expected}"]
