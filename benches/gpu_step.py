"""Measures how much slower a GPU-bound training step is under memlab. Needs a GPU.

    python benches/gpu_step.py               (--small on a GPU with less than 24 GiB)

Trains a transformer in bf16 in fresh processes, with and without LD_PRELOAD=libmemlab.so, in the order ABBA BAAB …, so that
a GPU that warms up or slows down favours neither. Each process warms up, then measures the median time of its steps with
CUDA events and their mean with the wall clock. Prints

    base 61.32 ms, memlab 61.35 ms, slower by 0.05 %          (by CUDA events, the median of the processes)

and how much the processes of one kind differ. A smaller difference means nothing. `--time` measures `memlab run --time`
instead, and beside it what users would take for that, torch.profiler with CUDA activities. `--launch-bound` takes a step of
many small kernels, for which the GPU waits for the CPU. `--simulated` tries the script on the simulated GPU, where the time
of a step means nothing.
"""

import argparse
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
SIMGPU = ROOT / "simgpu" / "simgpu"
LARGE = {"layers": 12, "width": 2048, "heads": 16, "batch": 8, "context": 1024, "vocabulary": 32768}
SMALL = {"layers": 12, "width": 1024, "heads": 16, "batch": 4, "context": 1024, "vocabulary": 8192}
LAUNCH_BOUND = {"layers": 24, "width": 256, "heads": 4, "batch": 1, "context": 64, "vocabulary": 1024}
TINY = {"layers": 2, "width": 64, "heads": 4, "batch": 2, "context": 32, "vocabulary": 256}


# The kinds of processes, the base first; how the base is changed, for those with memlab.
BASE, PROFILER = "base", "torch.profiler"
ENVIRONMENTS = {"memlab": {}, "memlab --time": {"MEMLAB_TIME": "1"}}


def measure(sizes, steps, warm_up, kind):
    """One process: prints the milliseconds of a step by CUDA events, by the wall clock, and to submit it."""
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

    for _ in range(warm_up):
        step()
    torch.cuda.synchronize()
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    if kind == PROFILER:
        profiler.start()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    start = time.perf_counter()
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    wall = (time.perf_counter() - start) / steps * 1e3
    by_events = statistics.median(earlier.elapsed_time(later) for earlier, later in itertools.pairwise(events))
    # The CPU time to submit a step to an idle GPU. If it is not well below the time of the step, the GPU waits for the CPU.
    submits = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        submits.append((time.perf_counter() - start) * 1e3)
    torch.cuda.synchronize()
    if kind == PROFILER:
        profiler.stop()
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    result = {
        "events_ms": by_events,
        "wall_ms": wall,
        "submit_ms": statistics.median(submits),
        "parameters_millions": millions,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    print(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)  # Skips teardown, which is not measured.


def run(kind, args, folder):
    """Measures in a fresh process."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MEMLAB", "LD_PRELOAD"))}
    memlab = kind in ENVIRONMENTS
    if memlab:
        environment |= {"LD_PRELOAD": str(LIBRARY), "MEMLAB_OUTPUT": f"{folder}/step-%p.jsonl"} | ENVIRONMENTS[kind]
    command = [sys.executable, __file__, "--measure", json.dumps([args.sizes, args.steps, args.warm_up, kind])]
    if args.simulated:
        command = [str(SIMGPU), "--memory", "16GiB", *command]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"gpu_step: a process with {kind} failed with {done.returncode}:\n{done.stderr[-3000:]}")
    if memlab:
        traces = list(Path(folder).glob("*.jsonl"))
        if not traces:
            sys.exit(f"gpu_step: memlab made no trace, so there is nothing to measure:\n{done.stderr[-3000:]}")
        for trace in traces:
            trace.unlink()
    return json.loads(done.stdout.splitlines()[-1])


def has_gpu():
    try:
        import torch
    except ImportError:
        sys.exit("gpu_step: this Python has no PyTorch")
    return torch.cuda.is_available()


def percent(one, other):
    """By which share `one` is more than `other`."""
    return (one / other - 1) * 100


def summary(results, args):
    """The measurements as a dictionary: of each kind of process its figures, and by how much it is slower than the base."""
    times = {kind: [result["events_ms"] for result in results if result["kind"] == kind] for kind in args.kinds}
    what = {
        "sizes": args.sizes,
        "steps": args.steps,
        "processes": len(times[BASE]),
        "simulated": args.simulated,
        **{key: results[0][key] for key in ("device", "torch", "parameters_millions", "peak_gib")},
    }
    if args.simulated:
        return what
    kinds = {}
    for kind in args.kinds:
        of_kind = [result for result in results if result["kind"] == kind]
        kinds[kind] = {key: statistics.median(r[key] for r in of_kind) for key in ("events_ms", "wall_ms", "submit_ms")}
        for key in ("events", "wall"):
            kinds[kind][f"slower_{key}_percent"] = percent(kinds[kind][f"{key}_ms"], kinds[BASE][f"{key}_ms"])
    spread = max(percent(max(of_kind), min(of_kind)) for of_kind in times.values())
    return what | {"kinds": kinds, "spread_percent": spread, "runs": results}


def report(found):
    print(
        f"{found['device']}, torch {found['torch']}: {found['parameters_millions']:.0f} million parameters, "
        f"{found['peak_gib']:.1f} GiB, {found['steps']} steps in each of {found['processes']} processes of a kind"
    )
    if found["simulated"]:
        print("simulated: the script works, all kinds of process ran; its times are no figures")
        return
    base = found["kinds"][BASE]
    for kind, figures in found["kinds"].items():
        if kind != BASE:
            for key, what in (("events", "by CUDA events"), ("wall", "by the wall clock")):
                print(
                    f"base {base[f'{key}_ms']:.2f} ms, {kind} {figures[f'{key}_ms']:.2f} ms, "
                    f"slower by {figures[f'slower_{key}_percent']:.2f} %          ({what})"
                )
    print(f"processes of one kind differ by up to {found['spread_percent']:.2f} %")
    print(
        "to submit a step the CPU needs "
        + ", ".join(f"{kind} {of['submit_ms']:.2f} ms" for kind, of in found["kinds"].items())
    )
    if max(of["submit_ms"] for of in found["kinds"].values()) > 0.8 * base["events_ms"]:
        print("this step is not GPU-bound: the card waits for the CPU")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, size in LARGE.items():
        parser.add_argument(f"--{name}", type=int, help=f"default {size}")
    parser.add_argument("--steps", type=int, help="measured in each process, at least 50; default 100")
    parser.add_argument("--warm-up", type=int, help="steps before these; default 20")
    parser.add_argument("--rounds", type=int, default=2, help="of two processes of each kind; default 2")
    parser.add_argument("--time", action="store_true", help="measure memlab run --time, and torch.profiler")
    parser.add_argument("--launch-bound", action="store_true", help="a step of many small kernels")
    parser.add_argument("--small", action="store_true", help="a model for a card of less than 24 GiB")
    parser.add_argument("--simulated", action="store_true", help="try the script without a GPU")
    parser.add_argument("--json", metavar="FILE", help="write what was measured there too")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(*json.loads(args.measure))
    defaults = TINY if args.simulated else LAUNCH_BOUND if args.launch_bound else SMALL if args.small else LARGE
    args.kinds = [BASE, "memlab --time", PROFILER] if args.time else [BASE, "memlab"]
    args.sizes = {name: getattr(args, name) or size for name, size in defaults.items()}
    args.steps = args.steps or (50 if args.simulated else 100)
    args.warm_up = args.warm_up or (2 if args.simulated else 20)
    if args.steps < 50:
        parser.error("fewer than 50 steps say nothing")
    if not LIBRARY.exists():
        sys.exit("gpu_step: build first: cargo build --release --workspace")
    if not args.simulated and not has_gpu():
        sys.exit(
            "gpu_step: PyTorch finds no GPU here, and what a GPU-bound step loses can only be measured on one.\n"
            "To try the script itself on the simulated GPU: python benches/gpu_step.py --simulated"
        )
    results = []
    with tempfile.TemporaryDirectory(prefix="memlab-step-") as folder:
        for round_ in range(args.rounds):
            order = args.kinds if round_ % 2 == 0 else args.kinds[::-1]
            for kind in [*order, *order[::-1]]:
                results.append({"kind": kind, **run(kind, args, folder)})
    found = summary(results, args)
    report(found)
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
