#!/usr/bin/env python3
"""Runs benchmarks. `make bench` builds memlab first; `make bench BENCH="append viewer"` passes the arguments on.

    benches/run.py                     those that need no GPU
    benches/run.py append viewer       some
    benches/run.py --list              lists all, with a sentence each
    benches/run.py --record append     keeps the figures: in benches/history.csv, RESULTS.md's tables and the plot

A figure is a line `= NAME: VALUE UNIT` of a benchmark's output. If a name is printed several times, the median counts.
"""

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass

import history
from history import ROOT

PYTHON = ".venv/bin/python"
SIMULATED = "simgpu/simgpu --memory 8GiB"
TOOLS = f"PYTHONPATH=$PWD/python {SIMULATED} target/tools-venv/bin/python"
FIGURE = re.compile(r"= (?P<name>.+): (?P<value>-?[\d.]+)(?: (?P<unit>\S+))?")


@dataclass(frozen=True)
class Bench:
    """Shell commands of a benchmark. `make` builds `needs`. A benchmark with a `reason` runs only by its name."""

    sentence: str
    commands: str
    needs: tuple[str, ...] = (".venv/.installed",)
    reason: str = ""


BENCHES = {
    "overhead": Bench(
        "Cost that memlab adds to a block event, beside PyTorch's own recorder.",
        f"{SIMULATED} {PYTHON} benches/overhead.py",
    ),
    "append": Bench(
        "Cost of appending one event, without Python.",
        """
        cc -O2 -Wall -o target/bench/append benches/append.c -lpthread
        MEMLAB_OUTPUT=target/bench/append.jsonl LD_PRELOAD=$PWD/target/release/libmemlab.so target/bench/append
        rm -f target/bench/append.jsonl
        """,
        needs=(),
    ),
    "cold": Bench(
        "Cost of an event after other work has used the processor's caches.",
        f"""
        cc -O2 -Wall -shared -fPIC -o target/bench/cold.so benches/cold.c -ldl
        simgpu/simgpu env MEMLAB_OUTPUT=target/bench/cold.jsonl LD_PRELOAD=$PWD/target/release/libmemlab.so \\
            {PYTHON} benches/cold.py $PWD/target/bench/cold.so
        rm -f target/bench/cold.jsonl
        """,
    ),
    "inside": Bench(
        "Cost of memlab's hooks inside a training.",
        f"""
        cc -O2 -Wall -shared -fPIC -o target/bench/inside.so benches/inside.c -ldl
        {SIMULATED} {PYTHON} benches/inside.py target/bench/inside.so
        """,
    ),
    "compiling": Bench(
        "Processor time of torch.compile under memlab, beside alone.",
        f"{SIMULATED} {PYTHON} benches/compiling.py",
    ),
    "replay": Bench(
        "Time and memory of replaying a trace of 10 million events.",
        "cargo run --release --quiet --example replay_bench",
        needs=(),
    ),
    "jobs": Bench(
        "Reports of a job of 512 ranks, and the dashboard on one that writes.",
        """
        cargo run --release --quiet --example job_bench
        cargo run --release --quiet --example viewer_bench -- --ranks 5
        """,
        needs=(),
    ),
    "viewer": Bench(
        "Processor time, answers and start of the dashboard, beside PyTorch's viewer on the same run.",
        f"""
        cargo run --release --quiet --example viewer_bench
        cargo run --release --quiet --example viewer_bench -- --write target/bench/viewer.jsonl
        {PYTHON} benches/memory_viz.py target/bench/viewer.jsonl
        rm -f target/bench/viewer.jsonl
        """,
    ),
    "tools": Bench(
        "Cost of the Python tools, beside pytorch_memlab in an environment of its own.",
        f"""
        {TOOLS} benches/line_profiler.py
        {TOOLS} benches/tracker.py
        {TOOLS} benches/reporter.py
        """,
        needs=("target/tools-venv/.installed",),
    ),
    "holders": Bench(
        "Search for what holds memory: the pause of the program, and the time of the search, by the size of the heap.",
        f"PYTHONPATH=python {SIMULATED} {PYTHON} benches/holders.py",
    ),
    "leaks": Bench(
        "Programs that leak, and clean ones: what the report names, and what the release of the holder frees.",
        f"PYTHONPATH=python {SIMULATED} {PYTHON} benches/leaks.py",
    ),
    "feed": Bench(
        "Samples a second of a feeder, beside PyTorch's DataLoader.",
        f"OMP_NUM_THREADS=1 PYTHONPATH=python {SIMULATED} {PYTHON} benches/feeder.py",
    ),
    "gate": Bench(
        "Cost that the open gate adds to a launch of a program started for offloading.",
        f"""
        cc -O2 -Wall -o target/bench/gate benches/gate.c -ldl
        {sys.executable} benches/gate.py target/bench/gate simgpu/simgpu
        """,
        needs=(),
    ),
    "schedule": Bench(
        "Copies of a paged model beside the recurrence that they follow, and the host's cost of a unit.",
        f"{PYTHON} benches/page.py --schedule",
    ),
    "plan": Bench(
        "Plans of memory, beside the estimates of other tools in an environment of their own.",
        "PYTHONPATH=$PWD/python target/plan-venv/bin/python benches/plan_peers.py",
        needs=("target/plan-venv/.installed",),
        reason="takes minutes",
    ),
    "batch": Bench(
        "Batches in pieces and activations off the GPU, beside the packages that `make peers` fetches.",
        f"PYTHONPATH=$PWD/python {sys.executable} benches/batch.py",
        needs=("peers",),
        reason="needs a GPU",
    ),
    "move": Bench(
        "Speed at which memory leaves a GPU and comes back, beside other ways.",
        f"{sys.executable} benches/move.py",
        needs=(),
        reason="needs a GPU",
    ),
    "page": Bench(
        "Speed of a model that is larger than its share of the GPU, beside other tools.",
        f"{sys.executable} benches/page.py",
        needs=(),
        reason="needs a GPU",
    ),
}


def run(bench):
    """Runs a benchmark and passes its output on. Returns its figures: values and unit by name."""
    if bench.needs:
        subprocess.run(["make", "--no-print-directory", *bench.needs], cwd=ROOT, check=True)
    (ROOT / "target" / "bench").mkdir(parents=True, exist_ok=True)
    figures: dict[str, tuple[list[str], str]] = {}
    command = ["bash", "-euo", "pipefail", "-c", bench.commands]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            if found := FIGURE.fullmatch(line.strip()):
                values, _ = figures.setdefault(found["name"], ([], found["unit"] or ""))
                values.append(found["value"])
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return {name: (sorted(values, key=float)[(len(values) - 1) // 2], unit) for name, (values, unit) in figures.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all that need no GPU")
    parser.add_argument("--list", action="store_true", help="list the benchmarks")
    parser.add_argument("--record", action="store_true", help="keep the figures in the history")
    options = parser.parse_args()
    if options.list:
        for name, bench in BENCHES.items():
            print(f"{name:10} {bench.sentence}{f' ({bench.reason})' if bench.reason else ''}")
        return
    if unknown := set(options.names) - BENCHES.keys():
        parser.error(f"no benchmark is named {', '.join(sorted(unknown))}: benches/run.py --list")
    names = options.names or [name for name, bench in BENCHES.items() if not bench.reason]
    commit = history.commit() if options.record else None
    failed = []
    for name in names:
        print(f"\n{name}: {BENCHES[name].sentence}", flush=True)
        try:
            figures = run(BENCHES[name])
        except subprocess.CalledProcessError as error:
            failed.append(f"{name} ended with {error.returncode}")
            continue
        if options.record:
            history.add(commit, name, figures)
    if options.record:
        history.main()
    sys.exit("\n".join(failed) or None)


if __name__ == "__main__":
    main()
