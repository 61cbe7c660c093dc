"""Measures the cost of memlab on this machine."""

import json
import re
import sys

from harness import ROOT, Failed, Skip

BENCHES = ROOT / "benches"
# Required: a GPU-bound step is at most this much slower, and an event takes at most this long.
STEP_PERCENT = 1.0
APPEND_NS = 150


def check_step(harness, folder):
    """A GPU-bound step under memlab."""
    result = harness.out / "gpu_step.json"
    simulated = ["--simulated", "--rounds", "1"] if harness.simulated else []
    small = ["--small"] if harness.machine["memory_gib"] < 24 else []
    command = [sys.executable, BENCHES / "gpu_step.py", "--json", result, *simulated, *small]
    run = harness.run(folder, *command, memlab=False, simulated=False, timeout=280)  # It starts the simulated GPU itself.
    if run.code != 0:
        raise Failed(run.errors[-3000:])
    harness.log("     " + run.output.strip().replace("\n", "\n     "))
    found = json.loads(result.read_text())
    if harness.simulated:
        return Skip("ran; its times are no figures")
    harness.note("step", {key: round(value, 3) for key, value in found.items() if key.endswith(("_ms", "_percent"))})
    slower = found["slower_percent"]
    return [f"{slower:.2f} % slower, more than {STEP_PERCENT} %"] if slower > STEP_PERCENT else []


def check_append(harness, folder):
    """One event alone."""
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
        return Skip("ran; measured by make bench-append")
    slow = int(nanoseconds[1]) > APPEND_NS
    return [f"{nanoseconds[1]} ns an event, more than {APPEND_NS}"] if slow else []


def check_overhead(harness, folder):
    """What memlab adds to an event of a small training. Not a check: the requirement is for an idle simulated GPU."""
    if not (BENCHES / "overhead.py").exists():
        return Skip("there is no benches/overhead.py")
    rounds, steps = ("1", "10") if harness.simulated else ("1", "80")
    command = [sys.executable, BENCHES / "overhead.py", "--rounds", rounds, "--steps", steps]
    run = harness.run(folder, *command, memlab=False, timeout=200, env={"TMPDIR": folder})
    if run.code != 0:
        raise Failed(run.errors[-2000:])
    harness.note("overhead", run.output.strip().splitlines())
    return []
