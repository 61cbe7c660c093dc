"""Compares the loss that `memlab run --fit` computes in rows with PyTorch's, bit for bit, and their times:
`loss_in_rows.py [MIB]`, with that many MiB of rows at a time. Runs the file that libmemlab.so embeds.
"""

import functools
import itertools
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional as F

ROWS = 8192
CLASSES = (1000, 10007, 32000, 50257, 128256, 151936)
TYPES = (torch.float32, torch.bfloat16, torch.float16)
AUTOCAST = (None, torch.bfloat16, torch.float16)


def loss_and_gradient(logits, target, autocast, reduction):
    given = logits.detach().requires_grad_()
    with torch.autocast("cuda", autocast, enabled=autocast is not None):
        loss = F.cross_entropy(given, target, reduction=reduction)
    loss.backward(torch.linspace(0.5, 2, loss.numel(), dtype=loss.dtype, device="cuda").reshape(loss.shape))
    return loss.detach(), given.grad


def milliseconds(function):
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        function()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    return sorted(times)[2]


def main():
    names: dict = {}
    folder = Path(__file__).parents[2] / "interpose/src/python"
    for source in (folder / "guards.py", folder / "fit_loss.py"):
        exec(compile(source.read_text(), str(source), "exec"), names)
    plain = torch._C._nn.cross_entropy_loss
    rows_bytes = int(sys.argv[1]) << 20 if len(sys.argv) > 1 else names["_ROWS_BYTES"]
    in_rows = names["_LossInRows"](torch, least_bytes=0, rows_bytes=rows_bytes)
    in_rows.install()
    patched = torch._C._nn.cross_entropy_loss
    differing = 0
    for classes, kind, autocast in itertools.product(CLASSES, TYPES, AUTOCAST):
        torch.manual_seed(classes)
        logits = (3 * torch.randn(ROWS, classes, device="cuda")).to(kind)
        target = torch.randint(0, classes, (ROWS,), device="cuda")
        target[::5] = -100
        figures = []
        for reduction in ("mean", "sum", "none"):
            found = []
            for function in (plain, patched):
                torch._C._nn.cross_entropy_loss = function
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                found.append(loss_and_gradient(logits, target, autocast, reduction))
                peak = (torch.cuda.max_memory_allocated() - before) / 2**30
                took = milliseconds(functools.partial(loss_and_gradient, logits, target, autocast, reduction))
                figures.append(f"{took:.2f} ms {peak:.2f} GiB")
            same = all(one.dtype == other.dtype and torch.equal(one, other) for one, other in zip(*found, strict=True))
            differing += not same
            if not same:
                print(f"DIFFERS: {classes} {kind} autocast {autocast} {reduction}", flush=True)
            del found
        print(f"{classes} {kind} autocast {autocast}: mean {figures[0]}, in rows {figures[1]}", flush=True)
    print(f"{differing} cases differ", flush=True)


main()
