"""Measures the cost of memlab on this machine."""

import json
import re
import sys

from harness import ROOT, Failed, Skip

BENCHES = ROOT / "benches"
# Maximum slowdown of a GPU-bound step, and maximum time of an event.
STEP_PERCENT = 1.0
APPEND_NS = 150


# Maximum slowdown with `memlab run --time`.
TIMED_PERCENT = {"gpu": 1.0, "launches": 10.0}


def check_step(harness, folder, *options):
    """Checks a GPU-bound step under memlab."""
    result = harness.out / f"gpu_step{'-'.join(options)}.json"
    simulated = ["--simulated", "--turns", "2"] if harness.simulated else []
    small = ["--small"] if harness.machine["memory_gib"] < 70 else []
    command = [sys.executable, BENCHES / "gpu_step.py", "--json", result, *simulated, *small, *options]
    run = harness.run(folder, *command, memlab=False, simulated=False, timeout=280)  # It starts the simulated GPU itself.
    if run.code != 0:
        raise Failed(run.errors[-3000:])
    harness.log("     " + run.output.strip().replace("\n", "\n     "))
    if harness.simulated:
        return Skip("ran; its times are no figures")
    found = json.loads(result.read_text())
    harness.note(" ".join(["step", *options]), found["kinds"])
    if not options:
        slower = found["kinds"]["memlab"]["slower_events_percent"]
        return [f"{slower:.2f} % slower, more than {STEP_PERCENT} %"] if slower > STEP_PERCENT else []
    timed, profiler = (found["kinds"][kind]["slower_wall_percent"] for kind in ("memlab --time", "torch.profiler"))
    most = TIMED_PERCENT["launches" if "--launch-bound" in options else "gpu"]
    wrong = [f"{timed:.2f} % slower, more than {most} %"] if timed > most else []
    return wrong + ([f"{timed:.2f} % slower, and torch.profiler {profiler:.2f} %"] if timed > profiler else [])


def check_timed_step(harness, folder, bound):
    """Checks a step with times, compared with torch.profiler."""
    return check_step(harness, folder, "--time", *(["--launch-bound"] if bound == "launches" else []))


def check_append(harness, folder):
    """Checks one event alone."""
    program = harness.compile(BENCHES / "append.c", folder / "append")
    run = harness.run(folder, program, timeout=60, env={"MEMLAB_OUTPUT": folder / "append.jsonl"})
    if run.code != 0:
        raise Failed(run.errors[-2000:])
    harness.note("append", run.output.strip())
    nanoseconds = re.search(r"append: (\d+) ns", run.output)
    if not nanoseconds:
        raise Failed(f"it said: {run.output}")
    for trace in folder.glob("*.jsonl"):
        trace.unlink()  # Too large to keep.
    if harness.simulated:
        return Skip("ran; measured by make bench BENCH=append")
    slow = int(nanoseconds[1]) > APPEND_NS
    return [f"{nanoseconds[1]} ns an event, more than {APPEND_NS}"] if slow else []


def check_overhead(harness, folder):
    """Measures memlab's overhead per event of a small training. No check: the requirement is for an idle simulated GPU."""
    if not (BENCHES / "overhead.py").exists():
        return Skip("there is no benches/overhead.py")
    rounds, steps = ("1", "10") if harness.simulated else ("1", "80")
    command = [sys.executable, BENCHES / "overhead.py", "--rounds", rounds, "--steps", steps]
    run = harness.run(folder, *command, memlab=False, timeout=200, env={"TMPDIR": folder})
    if run.code != 0:
        raise Failed(run.errors[-2000:])
    harness.note("overhead", run.output.strip().splitlines())
    return []
