"""Activations off the card: `activations.py speed WIDTH [LAYERS TOKENS]` or `exact`. Prints JSON lines.

`speed`: forward and backward of transformer blocks in bfloat16, in several ways by turns in one process: all resident, each
block checkpointed, `save_on_cpu`, and `memlab.offload_activations`.
"""

import contextlib
import json
import statistics
import sys

import memlab
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

LENGTH = 1024


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = width // 128
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Layers(nn.Module):
    def __init__(self, width, count):
        super().__init__()
        self.layers = nn.ModuleList(Layer(width) for _ in range(count))

    def forward(self, x, run=None):
        for layer in self.layers:
            x = layer(x) if run is None else run(layer, x)
        return x


def forward_backward(model, x, context=contextlib.nullcontext, run=None):
    with context():
        loss = model(x, run).float().square().mean()
    loss.backward()
    return loss.detach()


def timed(step):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    begin.record()
    step()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end), torch.cuda.max_memory_allocated() - before


def speed(width, count, tokens, rounds=7):
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Layers(width, count).bfloat16()
        x = torch.randn(tokens // LENGTH, LENGTH, width, dtype=torch.bfloat16, requires_grad=True)
    forward_backward(model, x)
    block = 32 * tokens * width

    def offloaded(blocks, **options):
        return lambda: forward_backward(model, x, lambda: memlab.offload_activations(int(blocks * block), **options))

    recomputed = lambda layer, x: checkpoint(layer, x, use_reentrant=False)  # noqa: E731
    ways = {
        "resident": lambda: forward_backward(model, x),
        "checkpointing": lambda: forward_backward(model, x, run=recomputed),
        "memlab 1 block": offloaded(1),
        "memlab 1.5 blocks": offloaded(1.5),
        "memlab 2 blocks": offloaded(2),
        "memlab 3 blocks": offloaded(3),
        "memlab 2 blocks, copies only": offloaded(2, recompute=False),
    }
    if "--peers" in sys.argv:
        ways["save_on_cpu"] = lambda: forward_backward(model, x, lambda: torch.autograd.graph.save_on_cpu(pin_memory=True))
    seen: dict[str, list[tuple[float, int]]] = {name: [] for name in ways}
    for step in ways.values():
        for _ in range(3):
            step()
    for _ in range(rounds):
        for name, step in ways.items():
            seen[name].append(timed(step))
    resident = statistics.median(time for time, _ in seen["resident"])
    for name, rows in seen.items():
        time = statistics.median(time for time, _ in rows)
        row = {
            "width": width, "layers": count, "tokens": tokens, "way": name, "ms": round(time, 1),
            "ratio": round(time / resident, 3), "peak_blocks": round(max(peak for _, peak in rows) / block, 2),
        }  # fmt: skip
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    what, *sizes = (argument for argument in sys.argv[1:] if not argument.startswith("--"))
    globals()[what](*map(int, sizes))
