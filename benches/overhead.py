"""Measures memlab's overhead per block event, compared with PyTorch's own recorder, in one run.

    make bench BENCH=overhead        (or, on a machine with a GPU: python benches/overhead.py)

Trains a 12-layer transformer in fresh processes, interleaved: without recorder, with
`_record_memory_history(stacks="python")`, and under memlab. Kernels take no time on the simulated GPU, so a step is Python,
allocations and their recording. Repeats it 40 frames deep, with four threads that each train, and compiled. Prints

    shallow: base … µs a step, PyTorch's recorder +… ns an event, memlab +… ns an event, ratio …
    …
    ratio: X          (the worst of them: memlab's overhead divided by the recorder's)

An event is a block handed out or taken back. Each process counts with its quietest steps (the lower quartile), because the
machines are shared. The figure is the median over rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

LIBRARY = Path(__file__).resolve().parent.parent / "target" / "release" / "libmemlab.so"
# Additional frames, and threads. The main thread compiles code, because memlab detects compilation there.
SHAPES = {"shallow": (0, 1), "40 frames deep": (40, 1), "4 threads": (0, 4), "compiled": (0, 0)}


def measure(recorder, depth, threads, steps):
    """Measures in one process and prints the seconds and the events of a step."""
    import threading
    import time

    import torch
    from torch import nn

    if recorder == "pytorch":
        torch.cuda.memory._record_memory_history(stacks="python", max_entries=100_000)
    times = []

    def train():
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        model = nn.TransformerEncoder(layer, 12).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        batch = torch.randn(2, 8, 64, device="cuda")
        run = model if threads else torch.compile(model)

        def step():
            optimizer.zero_grad()
            run(batch).sum().backward()
            optimizer.step()

        def deep(frames):
            return step() if frames == 0 else deep(frames - 1)

        for _ in range(10):
            deep(depth)
        for _ in range(steps):
            start = time.perf_counter()
            deep(depth)
            times.append(time.perf_counter() - start)

    workers = [threading.Thread(target=train) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if not workers:
        train()
    counts = torch.cuda.memory_stats()
    events = counts["allocation.all.allocated"] + counts["allocation.all.freed"]
    times.sort()
    print(json.dumps({"step": times[len(times) // 4], "events": events / (max(threads, 1) * (steps + 10))}))
    sys.stdout.flush()
    os._exit(0)  # Skips teardown, which is not measured.


def run(recorder, depth, threads, steps):
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    if recorder == "memlab":
        environment["LD_PRELOAD"] = ":".join(filter(None, [str(LIBRARY), environment.get("LD_PRELOAD")]))
        environment["MEMLAB_OUTPUT"] = str(Path(environment.get("TMPDIR", "/tmp")) / "memlab-overhead-%p.jsonl")
    command = [sys.executable, __file__, "--measure", recorder, str(depth), str(threads), str(steps)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate()
    if recorder == "memlab":
        Path(environment["MEMLAB_OUTPUT"].replace("%p", str(process.pid))).unlink(missing_ok=True)
    if process.returncode != 0:
        sys.exit(f"overhead: the {recorder} process failed with {process.returncode}")
    return json.loads(output.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES)
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        recorder, depth, threads, steps = args.measure
        measure(recorder, int(depth), int(threads), int(steps))
    if not LIBRARY.exists():
        sys.exit("overhead: build first: cargo build --release --workspace")
    ratios = {}
    for shape in args.shapes:
        depth, threads = SHAPES[shape]
        added: dict[str, list[float]] = {"pytorch": [], "memlab": []}
        bases = []
        for round_ in range(args.rounds):
            order = ["alone", "pytorch", "memlab"]
            results = {}
            for recorder in order if round_ % 2 == 0 else reversed(order):
                results[recorder] = run(recorder, depth, threads, args.steps)
            base = results["alone"]["step"]
            bases.append(base)
            for recorder, values in added.items():
                values.append((results[recorder]["step"] - base) / results["alone"]["events"] * 1e9)
        theirs, ours = (statistics.median(added[recorder]) for recorder in ("pytorch", "memlab"))
        ratios[shape] = ours / theirs
        print(
            f"{shape}: base {statistics.median(bases) * 1e6:.0f} µs a step of {results['alone']['events']:.0f} events, "
            f"PyTorch's recorder +{theirs:.0f} ns an event, memlab +{ours:.0f} ns an event, ratio {ratios[shape]:.2f}",
            flush=True,
        )
        print(f"= {shape}, a step without recorder: {statistics.median(bases) * 1e3:.1f} ms")
        print(f"= {shape}, PyTorch's recorder: {theirs:.0f} ns")
        print(f"= {shape}, memlab: {ours:.0f} ns")
        print(f"= {shape}, ratio: {ratios[shape]:.2f}", flush=True)
    print(f"ratio: {max(ratios.values()):.2f}")


if __name__ == "__main__":
    main()
