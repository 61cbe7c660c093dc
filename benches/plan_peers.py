"""Compares memory plans with other tools' estimates, in one run on simulated cards.

    make bench BENCH=plan

Prints three tables:

- For 5 programs at 2 batches: PyTorch's peak reserved memory, and the error and the seconds of `memlab plan`,
  `memlab.inspect`, accelerate's estimate and PyTorch's MemTracker.
- The largest batch on a card of 16 GiB by `memlab plan` and by Lightning's batch-size finder, and whether it runs for 20
  steps and the next larger does not.
- The duration of `memlab plan` for GPT-2.

Each runs in a separate process; seconds include imports; figures are medians over rounds. Kernels compute nothing on a
simulated card: a finder's seconds are those of the CPU alone.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import planning

MEMLAB = Path(__file__).resolve().parent.parent / "target" / "release" / "memlab"
FIT_CARD = "16GiB"
STEPS = 20
METHODS = ["memlab plan", "memlab.inspect", "accelerate", "MemTracker"]
# Methods that need a device, and its card.
ON_CARD = {"MemTracker": "h100"}


def run(*command, card=None):
    """The last line of output, as JSON, and seconds. None if it fails, which is reported unless memory ran out."""
    simulated = [MEMLAB, "simulate", "--card", card, "--"] if card else []
    begin = time.perf_counter()
    done = subprocess.run(
        [str(part) for part in (*simulated, *command)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    seconds = time.perf_counter() - begin
    if done.returncode != 0:
        if "OutOfMemoryError" in done.stderr:
            return None, seconds
        raise SystemExit(f"{' '.join(map(str, command))}: {done.stderr[-1000:]}")
    answer = done.stdout[done.stdout.index("{") :] if "--json" in command else done.stdout.splitlines()[-1]
    return json.loads(answer), seconds


def part(*arguments, card=None):
    return run(sys.executable, planning.__file__, *arguments, card=card)


def plan(name, *options):
    return run(MEMLAB, "plan", "--json", *options, "--", sys.executable, planning.__file__, "train", name, "{batch}")


def figures(method, name, batches):
    """Bytes by batch, and seconds for all of them."""
    if method == "memlab plan":
        answer, seconds = plan(name, "--predict", ",".join(map(str, batches)))
        return answer and [row["peak_reserved_bytes"] for row in answer["batches"]], seconds
    return part(method, name, *batches, card=ON_CARD.get(method))


def against_truth(names, rounds):
    print(f"{'program':8} {'batch':>5} {'reserved':>9}", *(f"{method:>22}" for method in METHODS))
    for name in names:
        program = planning.PROGRAMS[name]
        truths = [part("train", name, batch, card="h100")[0] for batch in program.batches]
        answers = {method: [figures(method, name, program.batches) for _ in range(rounds)] for method in METHODS}
        for index, (batch, truth) in enumerate(zip(program.batches, truths, strict=True)):
            cells = []
            for answer in answers.values():
                seconds = statistics.median(seconds for _, seconds in answer)
                told = [figure[index] for figure, _ in answer if figure]
                error = f"{statistics.median(told) / truth - 1:+.2%}" if told else "fails"
                cells.append(f"{error + f', {seconds:.1f} s':>22}")
            print(f"{name:8} {batch:5} {truth / 2**20:5.0f} MiB", *cells, flush=True)


def finders(names, rounds):
    print(f"\n{'program':8} {'finder':12} {'batch':>6} {'seconds':>8}  runs {STEPS} steps, one more does not; on {FIT_CARD}")
    for name in names:
        found = {
            "memlab plan": [plan(name, "--card", FIT_CARD) for _ in range(rounds)],
            "Lightning": [part("lightning", name, card=FIT_CARD) for _ in range(rounds)],
        }
        for finder, answers in found.items():
            told = [answer["largest_batch"] for answer, _ in answers if answer]
            seconds = statistics.median(seconds for _, seconds in answers)
            if not told:
                print(f"{name:8} {finder:12} {'none':>6} {seconds:8.1f}")
                continue
            batch = int(statistics.median(told))
            runs = [part("train", name, batch + more, STEPS, card=FIT_CARD)[0] is not None for more in (0, 1)]
            print(f"{name:8} {finder:12} {batch:6} {seconds:8.1f}  {runs[0]}, {not runs[1]}", flush=True)


def time_to_answer(rounds):
    whole = statistics.median(plan("gpt2", "--card", "h100")[1] for _ in range(rounds))
    imports = statistics.median(part("imports")[1] for _ in range(rounds))
    print(f"\nGPT-2, memlab plan: {whole:.1f} s, of which imports {imports:.1f} s, without them {whole - imports:.1f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--programs", nargs="+", choices=planning.PROGRAMS, default=list(planning.PROGRAMS))
    arguments = parser.parse_args()
    rounds = arguments.rounds
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, medians of {rounds}")
    against_truth(arguments.programs, rounds)
    finders(arguments.programs, rounds)
    time_to_answer(rounds)
    print(f"load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
