"""Offloaded activations: `offloaded_activations.py exact`, `pack`, or `speed WIDTH LAYERS TOKENS`. Prints JSON lines.

`speed`: forward and backward of transformer blocks in bfloat16, in several ways that alternate in one process: all resident,
each block checkpointed, `save_on_cpu`, and `memlab.offload_activations`.
"""

import contextlib
import json
import statistics
import sys
import time

import memlab
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

LENGTH = 1024
# Steps before the first that counts. memlab has its schedule from the third forward on.
WARM_UP = 4


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


def transformer(width, count, tokens):
    """A model in bfloat16, its input, and the bytes that autograd saves of one block."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Layers(width, count).bfloat16()
        x = torch.randn(tokens // LENGTH, LENGTH, width, dtype=torch.bfloat16, requires_grad=True)
    return model, x, 32 * tokens * width


def ways_of(model, x, block):
    """A step in each way."""

    def offloaded(blocks, **options):
        return lambda: forward_backward(model, x, lambda: memlab.offload_activations(int(blocks * block), **options))

    def recomputed(layer, x):
        return checkpoint(layer, x, use_reentrant=False)

    def on_the_cpu():
        return torch.autograd.graph.save_on_cpu(pin_memory=True)

    return {
        "resident": lambda: forward_backward(model, x),
        "checkpointing": lambda: forward_backward(model, x, run=recomputed),
        "save_on_cpu": lambda: forward_backward(model, x, on_the_cpu),
        "memlab, 1 block": offloaded(1),
        "memlab, 1.5 blocks": offloaded(1.5),
        "memlab, 2 blocks": offloaded(2),
        "memlab, 2 blocks, copies only": offloaded(2, recompute=False),
    }


def compared(ways, block, rounds=7):
    """Milliseconds of alternating ways, compared with the first, and their peak memory. A failed way has its reason."""
    seen: dict[str, list[tuple[float, int]]] = {}
    for name, step in ways.items():
        try:
            for _ in range(WARM_UP):
                step()
            seen[name] = []
        except Exception as error:  # It is code of others, and the remaining ways go on.
            text = str(error).partition("\n")[0]
            yield {"way": name, "failed": f"{type(error).__name__}: {text}"}
    for _ in range(rounds):
        for name, rows in seen.items():
            rows.append(timed(ways[name]))
    medians = {name: statistics.median(milliseconds for milliseconds, _ in rows) for name, rows in seen.items()}
    first = next(iter(medians.values()))
    for name, milliseconds in medians.items():
        peak = max(peak for _, peak in seen[name])
        ratio = {"ratio": round(milliseconds / first, 3)} if first else {}  # The simulated GPU may have taken no time.
        row = {"way": name, "ms": round(milliseconds, 1), **ratio}
        yield row | {"peak_mib": peak >> 20, "peak_blocks": round(peak / block, 2)}


def speed(width, count, tokens):
    model, x, block = transformer(width, count, tokens)
    for row in compared(ways_of(model, x, block), block):
        print(json.dumps({"width": width, "layers": count, "tokens": tokens, **row}), flush=True)


def pack(rounds=5):
    """Host microseconds of an operation whose input is saved, compared with plain autograd: of tensors too small to move."""
    x = torch.randn(4, 4, device="cuda", requires_grad=True)
    count = 2000

    def chain():
        y = x
        for _ in range(count):
            y = functional.gelu(y)
        return y

    def hooked():
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            chain()

    def offloaded():
        with memlab.offload_activations("1GiB"):
            chain()

    def seconds(run):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    rows: dict[str, list[float]] = {name: [] for name in ("plain", "empty hooks", "memlab")}
    for _ in range(3 + rounds):
        for name, run in zip(rows, (chain, hooked, offloaded), strict=True):
            rows[name].append(seconds(run) / count * 1e6)
    medians = {name: round(statistics.median(times[3:]), 2) for name, times in rows.items()}
    print(json.dumps({"pack": medians}), flush=True)


class Pictures(nn.Module):
    """Residual blocks with BatchNorm, which write in place."""

    def __init__(self, channels=64, blocks=4):
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.convolutions = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2 * blocks))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2 * blocks))
        self.last = nn.Linear(channels, 10)

    def forward(self, x):
        x = self.first(x)
        for index in range(0, len(self.norms), 2):
            y = functional.relu(self.norms[index](self.convolutions[index](x)), inplace=True)
            y = self.norms[index + 1](self.convolutions[index + 1](y))
            y += x
            x = functional.relu(y, inplace=True)
        return self.last(x.mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.last = nn.LSTM(256, 512, 2, batch_first=True), nn.Linear(512, 10)

    def forward(self, x):
        return self.last(functional.dropout(self.lstm(x)[0], 0.1))


def exact():
    """Checks that gradients and buffers are bit-identical with and without, in several models and budgets."""
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    compiled = Layers(512, 4).bfloat16()
    cases: dict[str, tuple[nn.Module, torch.Tensor, bool]] = {
        "transformer, bf16": (Layers(512, 6).bfloat16(), torch.randn(8, 512, 512, dtype=torch.bfloat16), False),
        "transformer, autocast": (Layers(512, 6), torch.randn(8, 512, 512), True),
        "transformer, torch.compile": (compiled, torch.randn(8, 512, 512, dtype=torch.bfloat16), False),
        "convolutions, BatchNorm, in place": (Pictures(), torch.randn(16, 3, 64, 64), False),
        "the same, channels last": (
            Pictures().to(memory_format=torch.channels_last),
            torch.randn(16, 3, 64, 64).to(memory_format=torch.channels_last),
            False,
        ),
        "LSTM, dropout": (Recurrent(), torch.randn(32, 128, 256), False),
    }
    for name, (model, x, autocast) in cases.items():
        model, x = model.cuda(), x.cuda()
        run = torch.compile(model) if "compile" in name else model
        start = {key: value.clone() for key, value in model.state_dict().items()}

        def step(context, model=model, x=x, autocast=autocast, run=run, start=start):
            model.load_state_dict(start)
            model.zero_grad()
            torch.manual_seed(0)
            with context, torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                loss = run(x).float().square().mean()
            loss.backward()
            return [loss.detach(), *(one.grad for one in model.parameters()), *(one.clone() for one in model.buffers())]

        plain = [step(contextlib.nullcontext()) for _ in range(2)]
        for budget in ("8MiB", "64MiB", "4GiB"):
            same = []
            for _ in range(6):
                row = step(memlab.offload_activations(budget))
                same.append(all(torch.equal(one, other) for one, other in zip(row, plain[1], strict=True)))
            twice = all(torch.equal(one, other) for one, other in zip(*plain, strict=True))
            print(json.dumps({"case": name, "budget": budget, "same": same, "plain_twice": twice}), flush=True)


if __name__ == "__main__":
    what, *sizes = sys.argv[1:]
    if what == "speed":
        speed(*map(int, sizes))
    else:
        {"exact": exact, "pack": pack}[what]()
