"""Measures how much slower a GPU-bound training step is under memlab. Needs a GPU.

    python benches/gpu_step.py               (--small on a GPU with less than 24 GiB)

Trains a transformer in bf16 in fresh processes, with and without LD_PRELOAD=libmemlab.so, in the order ABBA BAAB …, so that
a GPU that warms up or slows down favours neither. Each process warms up, then measures the median time of its steps with
CUDA events and their mean with the wall clock. Prints

    base 61.32 ms, memlab 61.35 ms, slower by 0.05 %          (by CUDA events, the median of the processes)

and how much the processes of one kind differ. A smaller difference means nothing. `--simulated` tries the script on the
simulated GPU, where the time of a step means nothing.
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
TINY = {"layers": 2, "width": 64, "heads": 4, "batch": 2, "context": 32, "vocabulary": 256}


def measure(sizes, steps, warm_up):
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


def run(memlab, args, folder):
    """Measures in a fresh process."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MEMLAB", "LD_PRELOAD"))}
    if memlab:
        environment |= {"LD_PRELOAD": str(LIBRARY), "MEMLAB_OUTPUT": f"{folder}/step-%p.jsonl"}
    command = [sys.executable, __file__, "--measure", json.dumps([args.sizes, args.steps, args.warm_up])]
    if args.simulated:
        command = [str(SIMGPU), "--memory", "16GiB", *command]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        who = "memlab's" if memlab else "the base"
        sys.exit(f"gpu_step: {who} process failed with {done.returncode}:\n{done.stderr[-3000:]}")
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
    """The measurements as a dictionary."""
    base, memlab = ([result["events_ms"] for result in results if result["memlab"] is kind] for kind in (False, True))
    wall = [statistics.median(r["wall_ms"] for r in results if r["memlab"] is kind) for kind in (False, True)]
    what = {
        "sizes": args.sizes,
        "steps": args.steps,
        "processes": len(base),
        "simulated": args.simulated,
        **{key: results[0][key] for key in ("device", "torch", "parameters_millions", "peak_gib")},
    }
    if args.simulated:
        return what
    return what | {
        "base_ms": statistics.median(base),
        "memlab_ms": statistics.median(memlab),
        "slower_percent": percent(statistics.median(memlab), statistics.median(base)),
        "base_wall_ms": wall[0],
        "memlab_wall_ms": wall[1],
        "slower_wall_percent": percent(wall[1], wall[0]),
        "spread_percent": max(percent(max(times), min(times)) for times in (base, memlab)),
        "submit_ms": statistics.median(r["submit_ms"] for r in results if not r["memlab"]),
        "memlab_submit_ms": statistics.median(r["submit_ms"] for r in results if r["memlab"]),
        "runs": results,
    }


def report(found):
    print(
        f"{found['device']}, torch {found['torch']}: {found['parameters_millions']:.0f} million parameters, "
        f"{found['peak_gib']:.1f} GiB, {found['steps']} steps in each of {2 * found['processes']} processes"
    )
    if found["simulated"]:
        print("simulated: the script works, both kinds of process ran; its times are no figures")
        return
    print(
        f"base {found['base_ms']:.2f} ms, memlab {found['memlab_ms']:.2f} ms, slower by {found['slower_percent']:.2f} %"
        f"          (by CUDA events; processes of one kind differ by up to {found['spread_percent']:.2f} %)"
    )
    print(
        f"base {found['base_wall_ms']:.2f} ms, memlab {found['memlab_wall_ms']:.2f} ms, "
        f"slower by {found['slower_wall_percent']:.2f} %          (by the wall clock)"
    )
    print(f"to submit a step the CPU needs {found['submit_ms']:.2f} ms, under memlab {found['memlab_submit_ms']:.2f} ms")
    if found["memlab_submit_ms"] > 0.8 * found["base_ms"]:
        print("this step is not GPU-bound: the card waits for the CPU. Try larger sizes.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, size in LARGE.items():
        parser.add_argument(f"--{name}", type=int, help=f"default {size}")
    parser.add_argument("--steps", type=int, help="measured in each process, at least 50; default 100")
    parser.add_argument("--warm-up", type=int, help="steps before these; default 20")
    parser.add_argument("--rounds", type=int, default=2, help="of four processes each; default 2")
    parser.add_argument("--small", action="store_true", help="a model for a card of less than 24 GiB")
    parser.add_argument("--simulated", action="store_true", help="try the script without a GPU")
    parser.add_argument("--json", metavar="FILE", help="write what was measured there too")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(*json.loads(args.measure))
    defaults = TINY if args.simulated else SMALL if args.small else LARGE
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
            order = [False, True, True, False]
            for memlab in order if round_ % 2 == 0 else [not kind for kind in order]:
                results.append({"memlab": memlab, **run(memlab, args, folder)})
    found = summary(results, args)
    report(found)
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
