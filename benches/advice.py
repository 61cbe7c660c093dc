"""Compares the forecasts of `memlab advise` for peak and step time with measurements of the changed programs.

    python benches/advice.py [--json OUT.json] [KIND…]         (--simulated where there is a GPU, too)

Records each training of `tests/know/programs/advised.py`, requests advice, and runs it again with each piece of advice.
On a GPU, batches are sixteen times as large. On the simulated card, times mean nothing. Times are of runs without memlab.
Prints a table."""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tests" / "know" / "programs" / "advised.py"
MEMLAB = ROOT / "target" / "release" / "memlab"
SIMGPU = [ROOT / "simgpu" / "simgpu", "--memory", "8GiB"]
KINDS = ["gpt", "gpt-eager", "resnet", "resnet-50", "stages", "unet"]
KINDS += ["llama-lora", "words", "gradients", "optimizer", "lengths"]
NEEDS = {"llama-lora": ["transformers", "peft"], "resnet-50": ["transformers"]}
# Keeps the GPU busy, and steps alike.
ON_GPU = ["--scale", "16", "--steps", "12"]
MIB = 1 << 20


class Bench:
    def __init__(self, simulated):
        self.simulated = simulated
        self.card = SIMGPU if simulated else []
        self.size = [] if simulated else ON_GPU

    def run(self, *command, **env):
        paths = f"{ROOT / 'python'}:{os.environ.get('PYTHONPATH', '')}"
        env = os.environ | {"PYTHONPATH": paths} | env
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=env)
        if done.returncode:
            sys.exit(done.stderr)
        return done.stdout

    def advice_on(self, kind):
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.jsonl"
            program = [sys.executable, PROGRAM, kind, *self.size]
            self.run(*self.card, MEMLAB, "run", "--time", "-o", trace, "--", *program)
            return json.loads(self.run(MEMLAB, "advise", "--json", trace))["advice"]

    def following(self, kind, advice, **env):
        """PyTorch's peaks and the step time of the changed program, for each piece of advice."""
        env |= {"ADVICE": json.dumps(advice)}
        output = self.run(*self.card, sys.executable, PROGRAM, kind, *self.size, **env)
        return [json.loads(line) for line in output.splitlines()]

    def rows(self, kind):
        """Applies the allocator's settings, which hold for a whole process; one process applies all other advice."""
        advice = self.advice_on(kind)
        in_code = [one for one in advice if not one["how"].startswith("export ")]
        before, *found = self.following(kind, [[], *([one] for one in in_code)])
        for one in advice:
            if one in in_code:
                after = found.pop(0)
            else:
                name, _, value = one["how"].removeprefix("export ").partition("=")
                (after,) = self.following(kind, [[]], **{name: value})
            yield row(kind, one, before, after, timed=not self.simulated)


def row(kind, advice, before, after, *, timed):
    """A row of the table. Times are of a step, in milliseconds; None: unknown."""
    said, cost = advice["bytes_after"], advice["cost_ns"]
    measured = after[advice["figure"]]
    times = (None, None, None)
    if timed:
        said_time = None if cost is None else before["milliseconds"] + cost / 1e6
        times = (before["milliseconds"], said_time, after["milliseconds"])
    return {
        "kind": kind, "advice": advice["kind"], "where": advice["where"], "before": said + advice["saved_bytes"],
        "said": said, "measured": measured, "error": said / measured - 1, "times": times,
        "time_error": times[1] and times[1] / times[2] - 1,
    }  # fmt: skip


def as_text(row):
    sizes = [f"{row[name] / MIB:.1f}" for name in ("before", "said", "measured")]
    times = ["–" if time is None else f"{time:.1f}" for time in row["times"]]
    time_error = "–" if row["time_error"] is None else f"{100 * row['time_error']:+.1f} %"
    cells = [row["kind"], row["advice"], row["where"], *sizes, f"{100 * row['error']:+.2f} %", *times, time_error]
    return f"| {' | '.join(cells)} |"


def has_gpu():
    done = subprocess.run([sys.executable, "-c", "import torch; print(torch.cuda.is_available())"], capture_output=True)
    return done.stdout.strip() == b"True"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", default=[], metavar="KIND")
    parser.add_argument("--simulated", action="store_true", help="on the simulated card")
    parser.add_argument("--json", help="a file for the rows")
    options = parser.parse_args()
    bench = Bench(options.simulated or not has_gpu())
    rows = []
    print("| program | advice | where | before, MiB | said | measured | error | step, ms | said | measured | error |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for kind in options.kinds or KINDS:
        if any(importlib.util.find_spec(package) is None for package in NEEDS.get(kind, [])):
            continue
        for row in bench.rows(kind):
            print(as_text(row), flush=True)
            rows.append(row)
    if options.json:
        Path(options.json).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
