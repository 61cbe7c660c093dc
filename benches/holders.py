"""Measures a search for what holds memory, by the size of the program's heap.

    make bench BENCH=holders         (or, on a machine with a GPU: python benches/holders.py)

For each heap it prints the time for which the program stands still, the time of the search in its copy, and the time until
`memlab.holders()` returns: medians of five searches. Each heap has 10,000 tensors on the GPU, in a list of modules.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HEAPS = {
    "10,000 tensors": "",
    "and 1 million dictionaries": "[{'a': [number]} for number in range(1_000_000)]",
    "and 5 million lists": "[[number] for number in range(5_000_000)]",
    "and 8 GB of numpy arrays": "[numpy.ones(1 << 27) for _ in range(8)]",
    "and 40 GB of numpy arrays": "[numpy.ones(1 << 27) for _ in range(40)]",
}
SEARCHES = 5


def search(heap):
    import memlab
    import numpy
    import torch

    layers = [torch.nn.Linear(8, 8, device="cuda") for _ in range(5000)]
    others = eval(HEAPS[heap], {"numpy": numpy}) if HEAPS[heap] else None
    elapsed = []
    for _ in range(SEARCHES):
        start = time.perf_counter()
        found = memlab.holders()
        elapsed.append(time.perf_counter() - start)
    assert sum(holder.bytes for holder in found) + found.unreached == torch.cuda.memory_allocated()
    assert len(layers) == 5000 and (others is None or others)
    print(json.dumps(elapsed))


def memory_bytes():
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")


def measure(heap):
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        environment = os.environ | {"MEMLAB_OUTPUT": str(trace)}
        done = subprocess.run(
            [sys.executable, __file__, "--here", heap], env=environment, capture_output=True, text=True, check=True
        )
        elapsed = json.loads(done.stdout.splitlines()[-1])
        records = [json.loads(line) for line in trace.read_bytes().splitlines() if line.startswith(b'{"holder')]
    pauses = [record["pause_ns"] / 1e6 for record in records if "pause_ns" in record]
    took = [record["took_ns"] / 1e6 for record in records if "took_ns" in record]
    print(f"= {heap}, pause: {statistics.median(pauses):.1f} ms (at most {max(pauses):.1f})", flush=True)
    print(f"= {heap}, search: {statistics.median(took):.0f} ms")
    print(f"= {heap}, holders(): {statistics.median(elapsed) * 1e3:.0f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--here", metavar="HEAP", help="search this process, with that heap")
    options = parser.parse_args()
    if options.here:
        search(options.here)
        return
    for heap in HEAPS:
        gigabytes = [int(word) for word in heap.split() if word.isdigit()]
        if "GB" in heap and gigabytes[0] * 1.2e9 > memory_bytes():
            print(f"{heap}: left out, the machine has too little memory")
            continue
        measure(heap)


if __name__ == "__main__":
    main()
