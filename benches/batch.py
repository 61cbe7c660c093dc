"""Measures micro-batches and offloaded activations, compared with common tools, in one run on one GPU.

    make peers                                                        once, where there is a network
    PYTHONPATH=python python benches/batch.py                         on a GPU, in less than seven minutes
    simgpu/simgpu --card h100 --memory 8GiB .venv/bin/python benches/batch.py --small      tries the program itself

Prints JSON lines, then tables. Requirements:

- A separable loss: at least 98 % of the throughput of the best micro-batches by hand.
- A loss that compares all samples: at most 1.35 times the time of one forward and backward of the same micro-batches.
- Activations of about a block: at most 1.05, 1.18 and 1.25 times the time with all resident at widths 8192, 4096 and 2048.

Each part runs in a separate process; figures are medians. Peers that are missing or fail are listed in the tables too.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import memlab
import peers
import torch
from torch import nn
from torch.nn import functional

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("benches/on_gpu", "tests/batches", "tests/know")
sys.path[1:1] = [str(ROOT / folder / "programs") for folder in PROGRAMS]

from offloaded_activations import compared, forward_backward, transformer, ways_of  # noqa: E402
from pieces import WIDTH, Encoder, tokens  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Maximum ratio of time by width, layers and tokens (the most that are resident on a card of 80 GB), and the ways that must
# reach it.
SHAPES = {(8192, 8, 8192): 1.05, (4096, 16, 8192): 1.18, (2048, 16, 16384): 1.25}
SMALL_SHAPES = {(512, 4, 2048): 1.25}
REQUIRED_WAYS = ("memlab, 1 block", "memlab, 1.5 blocks")
SEPARABLE, COUPLED = 0.98, 1.35
SCALE = 20.0


class AutocastEncoder(nn.Sequential):
    """Maps texts to vectors, in bfloat16 within, with the interface of sentence-transformers and with plain tensors."""

    def forward(self, texts):
        inputs = texts["input_ids"] if isinstance(texts, dict) else texts
        with torch.autocast(DEVICE, torch.bfloat16):
            vectors = super().forward(inputs)
        vectors = vectors.float()
        return {"sentence_embedding": vectors} if isinstance(texts, dict) else vectors


def all_pairs(outputs):
    """Computes `MultipleNegativesRankingLoss` of anchors followed by positives."""
    first, second = (functional.normalize(part, dim=-1) for part in outputs.chunk(2))
    return functional.cross_entropy(SCALE * first @ second.T, torch.arange(len(first), device=outputs.device))


def synchronized():
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def peak_mib():
    return torch.cuda.max_memory_allocated() >> 20 if DEVICE == "cuda" else 0


def measured(ways, model, rounds, steps=2):
    """Rows with seconds and peak of each way. Ways run one after the other: other micro-batch sizes leave other segments."""
    rows: dict[str, dict[str, Any]] = {name: {"way": name} for name in ways}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, step in ways.items():
            if "failed" in rows[name]:
                continue
            try:
                model.zero_grad()
                if DEVICE == "cuda":
                    torch.cuda.empty_cache()
                for _ in range(2):  # The first finds the largest possible micro-batch.
                    step()
                if DEVICE == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                for _ in range(steps):
                    begin = synchronized()
                    step()
                    seconds[name].append(synchronized() - begin)
                rows[name]["peak_mib"] = peak_mib()
            except torch.OutOfMemoryError:
                rows[name]["failed"] = "out of memory"
            except peers.Absent as absent:
                rows[name]["failed"] = f"absent: {absent}"
    for name, row in rows.items():
        if "failed" not in row:
            row["seconds"] = round(statistics.median(seconds[name]), 4)
    return list(rows.values())


def pieces_of(model, step):
    """Sample counts of the micro-batches in which a step goes through a model."""
    seen = []
    handle = model.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    step()
    handle.remove()
    return seen


def separable(small):
    """A mean of squares: micro-batches of each size by hand, as memlab chooses them, and in memlab the best size by hand."""
    samples, length, sizes = (32, 16, (4, 8, 16)) if small else (4096, 512, (64, 128, 256, 512, 1024))
    model = AutocastEncoder(Encoder(2 if small else 12)).to(DEVICE)
    texts, targets = tokens(samples, length).to(DEVICE), torch.zeros(samples, WIDTH, device=DEVICE)

    def by_hand(size):
        model.zero_grad()
        for part, goal in zip(texts.split(size), targets.split(size), strict=True):
            (functional.mse_loss(model(part), goal) * (len(part) / samples)).backward()

    def by_memlab(size=None):
        model.zero_grad()
        memlab.accumulate(model, texts, nn.MSELoss(), targets=targets, micro_batch=size)

    rows = measured({f"by hand, {size}": lambda size=size: by_hand(size) for size in sizes}, model, rounds=1)
    best = min((row for row in rows if "seconds" in row), key=lambda row: row["seconds"])
    size = int(best["way"].split()[-1])
    # Measures it by hand again: the best of several is also the luckiest.
    ways = {best["way"]: lambda: by_hand(size), f"memlab, {size}": lambda: by_memlab(size), "memlab, its choice": by_memlab}
    again = measured(ways, model, rounds=3)
    best["seconds"] = again[0]["seconds"]
    chosen = pieces_of(model, by_memlab)
    for row in again[1:]:
        if "seconds" in row:
            row["throughput"] = round(best["seconds"] / row["seconds"], 4)
    for row in rows + again[1:]:
        print(json.dumps({"part": "separable", "samples": samples, **row}), flush=True)
    print(json.dumps({"part": "separable", "way": "memlab, its choice", "pieces": [max(chosen), len(chosen)]}), flush=True)


def coupled(small):
    """All pairs of a batch: forward and backward of the micro-batches, memlab, and sentence-transformers' cached loss."""
    pairs, length, size = (16, 16, 8) if small else (1024, 512, 128)
    model = AutocastEncoder(Encoder(2 if small else 12)).to(DEVICE)
    texts = tokens(2 * pairs, length).to(DEVICE)

    def once():
        model.zero_grad()
        for part in texts.split(size):
            model(part).square().mean().backward()

    def by_memlab():
        model.zero_grad()
        return memlab.accumulate(model, texts, all_pairs, micro_batch=size)

    def by_peer():
        model.zero_grad()
        peer = peers.cached_loss(model, scale=SCALE, mini_batch_size=size)
        loss = peer([{"input_ids": part} for part in texts.chunk(2)], None)
        loss.backward()
        return loss.detach()

    name = f"sentence-transformers {version('sentence-transformers')}"
    rows = measured({"one forward and backward": once, "memlab": by_memlab, name: by_peer}, model, rounds=3)
    for row in rows:
        if "seconds" in row:
            row["ratio"] = round(row["seconds"] / rows[0]["seconds"], 3)
        print(json.dumps({"part": "coupled", "samples": 2 * pairs, "pieces": size, **row}), flush=True)
    if "failed" not in rows[-1]:
        # Checks that both compute the same: without dropout, in float32.
        model.eval()
        results = []
        for step in (by_memlab, by_peer):
            loss = step()
            results.append((float(loss), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])))
        (loss, ours), (their_loss, theirs) = results
        norm = float(theirs.norm()) or 1.0
        same = {"losses": [loss, their_loss], "gradients_differ": float((ours - theirs).norm()) / norm}
        print(json.dumps({"part": "coupled", "way": "memlab beside it", **same}), flush=True)


def version(package):
    try:
        return peers.version(package)
    except peers.Absent:
        return "(absent)"


def peers_ways(model, x):
    """Steps with each peer's activation offloading, as its own trainer applies it."""
    ways: dict[str, Any] = {}
    absent = {}
    try:
        tune = peers.torchtune()
        name = f"torchtune {version('torchtune')}"
        for streams in (True, False):
            # Its recipes: forward inside the context, backward outside.
            offloading = tune.OffloadActivations(use_streams=streams)
            label = f"{name}, {'streams' if streams else 'no streams'}"
            ways[label] = lambda offloading=offloading: forward_backward(model, x, lambda: offloading)
    except peers.Absent as why:
        absent["torchtune"] = str(why)
    try:
        within = peers.trl().get_act_offloading_ctx_manager(model, warn_if_no_head=False)

        def step():
            with within:  # Its trainer: forward and backward inside the context.
                forward_backward(model, x)

        ways[f"TRL {version('trl')}"] = step
    except peers.Absent as why:
        absent["TRL"] = str(why)
    return ways, absent


def activations(width, layers, count):
    model, x, block = transformer(width, layers, count)
    ours = ways_of(model, x, block)
    del ours["memlab, 2 blocks, copies only"]
    theirs, absent = peers_ways(model, x)
    rows = [{"way": name, "failed": f"absent: {why}"} for name, why in absent.items()]
    rows += compared(ours | theirs, block, rounds=5)
    for row in rows:
        print(json.dumps({"part": "activations", "width": width, "layers": layers, "tokens": count, **row}), flush=True)


def run(until, *arguments):
    """Output of a part, line by line, until a time limit."""
    command = [sys.executable, __file__, *map(str, arguments)]
    rows = []
    begin = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        timer = threading.Timer(max(0, until - begin), process.kill)
        timer.start()
        for line in process.stdout or ():
            if line.startswith("{"):
                print(line, end="", flush=True)
                rows.append(json.loads(line))
        process.wait()
        timer.cancel()
    seconds = time.monotonic() - begin
    print(f"({' '.join(map(str, arguments))}: {seconds:.0f} s)", flush=True)
    if process.returncode != 0:
        why = f"exit status {process.returncode} after {seconds:.0f} s"
        rows.append({"part": str(arguments[1]), "way": "the program", "failed": why})
    return rows


def table(title, rows, columns):
    print(f"\n{title}")
    print(f"{'':38}", *(f"{name:>14}" for name in columns))
    for row in rows:
        cells = [row["failed"]] if "failed" in row else [f"{row.get(name, '')!s:>14}" for name in columns]
        print(f"{row['way']:38}", *cells)


def verdict(what, figure, required, reached):
    print(f"{what}: {figure}; required: {required}. {'Reached' if reached else 'NOT REACHED'}")


def tables(parts, blocks, shapes):
    rows = [row for row in parts["separable"] if "pieces" not in row]
    table("A separable loss, the batch in pieces", rows, ["seconds", "throughput", "peak_mib"])
    for row in rows:
        if "throughput" in row:
            verdict(row["way"], row["throughput"], f"at least {SEPARABLE}", row["throughput"] >= SEPARABLE)
    rows = [row for row in parts["coupled"] if "losses" not in row]
    table("A loss that compares all samples, the same pieces", rows, ["seconds", "ratio", "peak_mib"])
    for row in rows:
        if row["way"] == "memlab" and "ratio" in row:
            verdict("memlab", row["ratio"], f"at most {COUPLED}", row["ratio"] <= COUPLED)
    for (width, layers, count), rows in blocks.items():
        title = f"Activations off the GPU, width {width}, {layers} layers, {count} tokens"
        table(title, rows, ["ms", "ratio", "peak_mib", "peak_blocks"])
        for row in rows:
            if row["way"] in REQUIRED_WAYS and "ratio" in row:
                most = shapes[width, layers, count]
                verdict(row["way"], row["ratio"], f"at most {most}", row["ratio"] <= most)
    if not shapes:
        print("\nActivations off the GPU: needs a GPU")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="sizes to try the program with")
    parser.add_argument("--seconds", type=float, default=600, help="end what still runs then, and show the rest")
    parser.add_argument("--part", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        part, *sizes = arguments.part
        if part == "activations":
            activations(*map(int, sizes))
        else:
            {"separable": separable, "coupled": coupled}[part](arguments.small)
        return
    card = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
    versions = {package: version(package) for package in ("torchtune", "trl", "sentence-transformers")}
    print(json.dumps({"card": card, "torch": torch.__version__, "memlab": memlab.__version__, **versions}), flush=True)
    if arguments.small:
        print("Sizes to try the program with: what is reached with them says nothing.")
    small = ["--small"] if arguments.small else []
    shapes = (SMALL_SHAPES if arguments.small else SHAPES) if DEVICE == "cuda" else {}
    until = time.monotonic() + arguments.seconds
    parts = {name: run(until, "--part", name, *small) for name in ("separable", "coupled")}
    blocks = {shape: run(until, "--part", "activations", *shape) for shape in shapes}
    tables(parts, blocks, shapes)
    sys.exit(any(row.get("way") == "the program" for rows in (*parts.values(), *blocks.values()) for row in rows))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
