"""Measures the slowdown of a training step under memlab. Needs a GPU.

    python benches/gpu_step.py               (--small on a GPU with less than 80 GB)

Trains a transformer in bf16 in processes with and without LD_PRELOAD=libmemlab.so. They start together and take turns:
in a turn, one of them runs while the others wait. It measures the median time of its steps with CUDA events and their mean
with the wall clock. A temporary slowdown of the machine thus affects all of them. Prints

    base 61.32 ms, memlab 61.35 ms, slower by 0.05 %          (by CUDA events)

and the variation of the turns. Each kind of process counts with its quieter turns (the lower quartile), because machines are
shared. With `--processes`, several of each kind run, because one may be slower than another of its kind all its life.
`--time` also measures `memlab run --time`, of all steps and of one in eight (use `--steps 16` then). It compares them with
the usual tool, torch.profiler with CUDA activities, and with the base of both: CUPTI, whose records are thrown away.
`--launch-bound` uses a step of many small kernels, for which the GPU waits for the CPU. `--simulated` tries the script on
the simulated GPU, where times mean nothing.
"""

import argparse
import ctypes
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "target" / "release" / "libmemlab.so"
FLOOR = ROOT / "target" / "release" / "examples" / "libcupti_floor.so"
SIMGPU = ROOT / "simgpu" / "simgpu"
LARGE = {"layers": 12, "width": 2048, "heads": 16, "batch": 8, "context": 1024, "vocabulary": 32768}
SMALL = {"layers": 12, "width": 1024, "heads": 16, "batch": 4, "context": 1024, "vocabulary": 8192}
LAUNCH_BOUND = {"layers": 24, "width": 256, "heads": 4, "batch": 1, "context": 64, "vocabulary": 1024}
TINY = {"layers": 2, "width": 64, "heads": 4, "batch": 2, "context": 32, "vocabulary": 256}

# Kinds of processes, the base first; and, for those with memlab, their changes to the base.
BASE, PROFILER, CUPTI = "base", "torch.profiler", "CUPTI alone"
ENVIRONMENTS = {
    "memlab": {},
    "memlab --time": {"MEMLAB_TIME": "1"},
    "memlab --time-every 8": {"MEMLAB_TIME": "1", "MEMLAB_TIME_EVERY": "8"},
}
# Figures, in milliseconds per step.
FIGURES = {"events": "by CUDA events", "wall": "by the wall clock", "submit": "for the CPU to submit it to an idle GPU"}


def training(sizes):
    """Returns a function that trains one step."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    width, context, vocabulary = sizes["width"], sizes["context"], sizes["vocabulary"]

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            batch, tokens, _ = x.shape
            heads = self.qkv(self.norm1(x)).view(batch, tokens, 3, sizes["heads"], -1)
            query, key, value = heads.permute(2, 0, 3, 1, 4)
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
            return x + self.mlp(self.norm2(x))

    torch.manual_seed(0)
    layers = [Block() for _ in range(sizes["layers"])]
    model = nn.Sequential(nn.Embedding(vocabulary, width), *layers, nn.LayerNorm(width), nn.Linear(width, vocabulary))
    model = model.to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids = torch.randint(vocabulary, (sizes["batch"], context + 1), device="cuda")

    def step():
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def turn(step, steps):
    """Milliseconds per step, by each figure."""
    import torch

    for _ in range(2):  # Warms the caches after the other processes' turns.
        step()
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    start = time.perf_counter()
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    wall = (time.perf_counter() - start) / steps * 1e3
    submits = []
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        submits.append((time.perf_counter() - start) * 1e3)
    torch.cuda.synchronize()
    by_events = statistics.median(earlier.elapsed_time(later) for earlier, later in itertools.pairwise(events))
    return {"events": by_events, "wall": wall, "submit": statistics.median(submits)}


def take_turns(kind, sizes, steps, warm_up):
    """Trains on request in this process, and prints the figures of each turn."""
    import torch

    if kind == CUPTI and ctypes.CDLL(str(FLOOR)).cupti_floor() != 0:
        sys.exit("gpu_step: CUPTI does not record here")
    step = training(sizes)
    for _ in range(warm_up):
        step()
    torch.cuda.synchronize()
    facts = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }
    print(json.dumps(facts), flush=True)
    for _ in sys.stdin:
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        if kind == PROFILER:
            profiler.start()
        figures = turn(step, steps)
        if kind == PROFILER:
            profiler.stop()
        print(json.dumps(figures), flush=True)
    os._exit(0)  # Skips teardown, which is not measured.


class Process:
    """One of the processes that take turns."""

    def __init__(self, kind, number, args, folder):
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("MEMLAB", "LD_PRELOAD"))}
        self.kind, self.folder = kind, Path(folder, f"{kind} {number}")
        self.folder.mkdir()
        self.errors = self.folder / "errors.txt"
        if kind in ENVIRONMENTS:
            environment |= {"LD_PRELOAD": str(LIBRARY), "MEMLAB_OUTPUT": f"{self.folder}/%p.jsonl"} | ENVIRONMENTS[kind]
        command = [sys.executable, __file__, "--process", json.dumps([kind, args.sizes, args.steps, args.warm_up])]
        if args.simulated:
            command = [str(SIMGPU), "--memory", "16GiB", *command]
        with self.errors.open("w") as errors:
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=errors, text=True)

    def answer(self):
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"gpu_step: the process with {self.kind} ended:\n{self.errors.read_text()[-3000:]}")
        return json.loads(line)

    def turn(self):
        print(file=self.process.stdin, flush=True)
        return self.answer()

    def finish(self):
        self.process.communicate()
        if self.kind in ENVIRONMENTS and not list(self.folder.glob("*.jsonl")):
            sys.exit(f"gpu_step: {self.kind} made no trace, so nothing was measured:\n{self.errors.read_text()[-3000:]}")


def measure(args, folder):
    """Facts about the machine, and the figures of each kind of process for each turn."""
    processes = [Process(kind, number, args, folder) for number in range(args.processes) for kind in args.kinds]
    facts, *_ = [process.answer() for process in processes]
    turns = []
    for number in range(args.turns):
        figures: dict[str, list[dict[str, float]]] = {kind: [] for kind in args.kinds}
        for process in processes if number % 2 == 0 else processes[::-1]:
            figures[process.kind].append(process.turn())
        turns.append(figures)
    for process in processes:
        process.finish()
    return facts, turns


def has_gpu():
    try:
        import torch
    except ImportError:
        sys.exit("gpu_step: this Python has no PyTorch")
    return torch.cuda.is_available()


def summary(facts, turns, args):
    """Result of each kind of process: its figures, their increase over the base in percent, and the variation of its turns
    (from the lower to the upper quartile)."""
    kinds: dict[str, dict[str, float]] = {}
    for kind in args.kinds:
        of_kind = kinds[kind] = {}
        for figure in FIGURES:
            lower, _, upper = statistics.quantiles((found[figure] for one in turns for found in one[kind]), n=4)
            of_kind[f"{figure}_ms"] = lower
            of_kind[f"slower_{figure}_percent"] = (lower / kinds[BASE][f"{figure}_ms"] - 1) * 100
            of_kind[f"spread_{figure}_percent"] = (upper / lower - 1) * 100
    return facts | {
        "sizes": args.sizes,
        "steps": args.steps,
        "turns": len(turns),
        "processes": args.processes,
        "kinds": kinds,
        "measured": turns,
    }


def report(found):
    print(
        f"{found['device']}, torch {found['torch']}: {found['peak_gib']:.1f} GiB, "
        f"{found['turns']} turns of {found['steps']} steps in each of {found['processes']} processes of a kind"
    )
    base = found["kinds"][BASE]
    for kind, of_kind in found["kinds"].items():
        for figure, how in FIGURES.items() if kind != BASE else ():
            print(
                f"base {base[f'{figure}_ms']:.2f} ms, {kind} {of_kind[f'{figure}_ms']:.2f} ms, "
                f"slower by {of_kind[f'slower_{figure}_percent']:.2f} %          ({how})"
            )
    spread = max(of_kind["spread_wall_percent"] for of_kind in found["kinds"].values())
    print(f"turns of one kind differ by up to {spread:.2f} % from quartile to quartile")
    if base["submit_ms"] > 0.8 * base["events_ms"]:
        print("this step is not GPU-bound: the card waits for the CPU")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, size in LARGE.items():
        parser.add_argument(f"--{name}", type=int, help=f"default {size}")
    parser.add_argument("--steps", type=int, default=6, help="measured in each turn; default 6")
    parser.add_argument("--turns", type=int, default=40, help="of each process, an even number; default 40")
    parser.add_argument("--warm-up", type=int, default=20, help="steps before the first turn; default 20")
    parser.add_argument("--processes", type=int, default=1, help="of each kind; default 1")
    parser.add_argument("--time", action="store_true", help="measure memlab run --time too, torch.profiler, and CUPTI alone")
    parser.add_argument("--launch-bound", action="store_true", help="a step of many small kernels")
    parser.add_argument("--small", action="store_true", help="a model for a card of less than 80 GB")
    parser.add_argument("--simulated", action="store_true", help="try the script without a GPU")
    parser.add_argument("--json", metavar="FILE", help="write what was measured there too")
    parser.add_argument("--process", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.process:
        take_turns(*json.loads(args.process))
    defaults = TINY if args.simulated else LAUNCH_BOUND if args.launch_bound else SMALL if args.small else LARGE
    args.kinds = [BASE, *ENVIRONMENTS, PROFILER, CUPTI] if args.time else [BASE, "memlab"]
    args.sizes = {name: getattr(args, name) or size for name, size in defaults.items()}
    if args.turns < 2 or args.turns % 2:
        parser.error("--turns: an even number, because the order of the processes goes there and back")
    if not LIBRARY.exists():
        sys.exit("gpu_step: build first: cargo build --release --workspace")
    if args.time and not FLOOR.exists():
        sys.exit("gpu_step: build first: cargo build --release -p cupti-sys --examples")
    if not args.simulated and not has_gpu():
        sys.exit(
            "gpu_step: PyTorch finds no GPU here, and what a GPU-bound step loses can only be measured on one.\n"
            "To try the script itself on the simulated GPU: python benches/gpu_step.py --simulated"
        )
    with tempfile.TemporaryDirectory(prefix="memlab-step-") as folder:
        facts, turns = measure(args, folder)
    if args.simulated:
        print("simulated: the script works, all kinds of process ran; its times are no figures")
        return
    found = summary(facts, turns, args)
    report(found)
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
