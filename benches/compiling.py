"""Measures memlab's overhead on torch.compile: compiles one model in fresh processes, alternately with and without it.

    make bench BENCH=compiling        (or, on a machine with a GPU: python benches/compiling.py)

Prints the processor time of the first compiled forward and backward as medians, and their ratio. Required: 1.02.
It is processor time because the machines are shared. Compilation runs in one process, so that all of it is counted.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

LIBRARY = Path(__file__).resolve().parent.parent / "target" / "release" / "libmemlab.so"


def compile_once():
    """Prints the processor time in seconds."""
    import time

    import timm
    import torch

    model = timm.create_model("vit_small_patch16_224", depth=6).cuda()
    images = torch.randn(4, 3, 224, 224, device="cuda")
    model(images).sum().backward()  # Loads all code of eager programs.
    compiled = torch.compile(model)
    start = time.process_time()
    compiled(images).sum().backward()
    torch.cuda.synchronize()
    print(time.process_time() - start)


def in_process(with_memlab):
    with tempfile.TemporaryDirectory() as folder:
        env = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "TRITON_CACHE_DIR": f"{folder}/triton",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        if with_memlab:
            preloads = [str(LIBRARY), *filter(None, [os.environ.get("LD_PRELOAD")])]
            env |= {"LD_PRELOAD": ":".join(preloads), "MEMLAB_OUTPUT": f"{folder}/trace.jsonl"}
        command = [sys.executable, __file__, "--once"]
        return float(subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        compile_once()
        return
    times: dict[bool, list[float]] = {False: [], True: []}
    for number in range(arguments.rounds):
        for with_memlab in (False, True) if number % 2 == 0 else (True, False):  # Slow changes affect both.
            times[with_memlab].append(in_process(with_memlab))
    without, under = (statistics.median(times[with_memlab]) for with_memlab in (False, True))
    print(f"compilation: {without:.2f} s, under memlab {under:.2f} s, ratio {under / without:.3f}")
    print(f"= alone: {without:.2f} s\n= under memlab: {under:.2f} s\n= ratio: {under / without:.3f}")


if __name__ == "__main__":
    main()
