"""Measures the overhead of profiling a function by line, compared with pytorch_memlab, in one run.

    make bench BENCH=tools           (or, on a machine with a GPU: python benches/line_profiler.py)

Profiles a function whose loop allocates, computes and frees, in fresh processes, interleaved: without a profiler, with
pytorch_memlab's LineProfiler and with memlab's, which loads the library late. Prints microseconds for each executed line:

    without …, pytorch_memlab +…, memlab +…, ratio …

The ratio is memlab's overhead divided by pytorch_memlab's. The figure of a process is the median over its calls. The printed
figure is the median over rounds.
"""

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import time

LINES = 4 * 100 + 100 + 3


def measure(tool, calls):
    """Measures in one process and prints the microseconds per line."""
    import torch

    def work():
        total = torch.zeros(256, device="cuda")
        for index in range(100):
            a = total + 1
            b = a * 2
            total = b - a
            count = index + 1
        return total, count

    def timed():
        took = []
        for _ in range(calls):
            start = time.perf_counter()
            work()
            took.append(time.perf_counter() - start)
        return statistics.median(took) * 1e6 / LINES

    timed()
    if tool == "without":
        took = timed()
    else:
        with importlib.import_module(tool).LineProfiler(work) as profiler:
            took = timed()
        with open("/dev/null", "w") as nowhere:
            profiler.print_stats(stream=nowhere)
    print(json.dumps(took))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--measure", choices=["without", "pytorch_memlab", "memlab"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure, arguments.calls)
        return
    took: dict[str, list[float]] = {"without": [], "pytorch_memlab": [], "memlab": []}
    for _ in range(arguments.rounds):
        for tool, values in took.items():
            command = [sys.executable, __file__, "--measure", tool, "--calls", str(arguments.calls)]
            values.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    base, theirs, ours = (statistics.median(values) for values in took.values())
    print(
        f"a profiled line: without {base:.2f} µs, pytorch_memlab +{theirs - base:.2f} µs, memlab +{ours - base:.2f} µs, "
        f"ratio {(ours - base) / (theirs - base):.4f}"
    )
    print(f"= a line, without a profiler: {base:.2f} µs")
    print(f"= a line, pytorch_memlab adds: {theirs - base:.2f} µs")
    print(f"= a line, memlab adds: {ours - base:.2f} µs")
    print(f"= a line, ratio: {(ours - base) / (theirs - base):.4f}")


if __name__ == "__main__":
    main()
