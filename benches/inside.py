"""Measures memlab's hooks inside a training, where PyTorch's code and data use the processor's caches before each call.

    make bench BENCH=inside                  (on a GPU: python benches/inside.py target/bench/inside.so)

trains the launch-bound step of benches/gpu_step.py in interleaved processes with and without libmemlab.so. PyTorch's calls
of the hooked functions go through inside.c, which times them. Prints, in nanoseconds, the time of PyTorch's function alone
(the mean), memlab's overhead, and the overhead per step:

    hook          a step      alone     median       mean
    node             659        189        329        401
"""

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from gpu_step import LAUNCH_BOUND, LIBRARY, training

KINDS = ("node", "allocated", "freed")


def measured(library, steps, warm_up):
    """Calls of each kind per step in one process, and their times."""
    import torch

    inside = ctypes.CDLL(library)
    step = training(LAUNCH_BOUND)
    for _ in range(warm_up):
        step()
    torch.cuda.synchronize()
    inside.inside_begin()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    found = ((ctypes.c_double * 3) * len(KINDS))()
    inside.inside_end(found)
    rows = zip(KINDS, found, strict=True)
    print(json.dumps({kind: [count / steps, median, mean] for kind, (count, median, mean) in rows}), flush=True)
    os._exit(0)  # Skips teardown, which is not measured.


def run(args, preloaded, folder):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MEMLAB")}
    others = filter(None, [os.environ.get("LD_PRELOAD")])  # The simulated GPU's.
    environment |= {"LD_PRELOAD": ":".join([args.library, *preloaded, *others]), "MEMLAB_OUTPUT": f"{folder}/%p.jsonl"}
    counts = ["--steps", str(args.steps), "--warm-up", str(args.warm_up)]
    command = [sys.executable, __file__, args.library, "--process", *counts]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"inside: the process ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="inside.c, compiled")
    parser.add_argument("--memlab", default=str(LIBRARY), help="the libmemlab.so to measure; default: the one built here")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each kind; default 3")
    parser.add_argument("--steps", type=int, default=100, help="measured in each process; default 100")
    parser.add_argument("--warm-up", type=int, default=30, help="steps before; default 30")
    parser.add_argument("--process", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.library = str(Path(args.library).absolute())
    if args.process:
        measured(args.library, args.steps, args.warm_up)
    with tempfile.TemporaryDirectory(prefix="memlab-inside-") as folder:
        rounds = [(run(args, [], folder), run(args, [args.memlab], folder)) for _ in range(args.rounds)]
    print("hook          a step      alone     median       mean")
    total = 0.0
    for kind in KINDS:
        count = rounds[0][1][kind][0]
        added = [
            [after - before for after, before in zip(with_it[kind], plain[kind], strict=True)] for plain, with_it in rounds
        ]
        median, mean = (statistics.median(column) for column in list(zip(*added, strict=True))[1:])
        total += count * mean
        alone = statistics.median(plain[kind][2] for plain, _ in rounds)
        print(f"{kind:12} {count:7.0f} {alone:10.0f} {median:10.0f} {mean:10.0f}")
        print(f"= {kind}, PyTorch's function alone: {alone:.0f} ns")
        print(f"= {kind}, added: {mean:.0f} ns")
    print(f"a step: {total / 1e6:.2f} ms")
    print(f"= a step, added: {total / 1e6:.2f} ms")


if __name__ == "__main__":
    main()
