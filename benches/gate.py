"""Measures the overhead of the open gate per launch: runs benches/gate.c with and without offloading, interleaved.

    make bench BENCH=gate

Prints the nanoseconds per call for both, and their difference, as medians of the rounds. Required: at most 20 ns.
"""

import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 7


def main():
    program, *simgpu = sys.argv[1:]
    folder = Path(program).parent
    library = str(ROOT / "target" / "release" / "libmemlab.so")
    times: dict = {"alone": [], "memlab": [], "--offload": []}
    for _ in range(ROUNDS):
        for kind, more in (
            ("alone", {}),
            ("memlab", {"LD_PRELOAD": library}),
            ("--offload", {"LD_PRELOAD": library, "MEMLAB_OFFLOAD": "1"}),
        ):
            environment = {k: v for k, v in os.environ.items() if not k.startswith(("MEMLAB", "LD_PRELOAD"))}
            environment |= {"MEMLAB_OUTPUT": str(folder / "gate.jsonl")} | more
            done = subprocess.run([*simgpu, program], env=environment, capture_output=True, text=True, check=True)
            times[kind].append(float(done.stdout))
    for kind, values in times.items():
        print(f"{kind}: {statistics.median(values):.1f} ns a call ({min(values):.1f} to {max(values):.1f})")
        print(f"= a launch, {kind}: {statistics.median(values):.1f} ns")
    added = statistics.median(gated - alone for gated, alone in zip(times["--offload"], times["alone"], strict=True))
    print(f"the gate adds {added:.1f} ns a launch")
    print(f"= the gate adds: {added:.1f} ns")


main()
