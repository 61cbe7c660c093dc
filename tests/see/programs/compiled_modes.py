"""Less common ways to compile. Each case writes PyTorch's own figures of the run to OUT.json.

    compiled_modes.py CASE OUT.json

OUT: {"allocated": the live bytes at the end, "truth": see `compiled_truth.py`}.
"""

import json
import sys

import compiled_truth
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl
from torch._functorch import config as functorch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

case, out = sys.argv[1:]
WIDTH, HEADS, LENGTH, BATCH = 64, 4, 256, 2


class Attention(nn.Module):
    """Attention with a learned bias."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.zeros(HEADS))

    def forward(self, x, mask):
        heads = [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)]

        def biased(score, batch, head, query, key):
            return score + self.bias[head] * (query - key)

        mixed = flex_attention(*heads, score_mod=biased, block_mask=mask)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(2))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, mask):
        for layer in self.layers:
            x = x + layer(F.gelu(x) * 2, mask)  # Its name, `mul`, is also that of an operation in `biased`.
        return self.head(x).square().mean()


def flex_attention_of_two_layers():
    model = torch.compile(Attending().cuda())
    mask = create_block_mask(lambda b, h, query, key: query >= key, None, None, LENGTH, LENGTH, device="cuda")
    for _ in range(2):
        model(torch.ones(BATCH, LENGTH, WIDTH, device="cuda"), mask).backward()
    return model


@triton.jit
def scaled(source, target, count, factor, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < count
    tl.store(target + places, tl.load(source + places, mask=mask) * factor, mask=mask)


def grid(count):
    return lambda settings: (triton.cdiv(count, settings["BLOCK"]),)


@torch.library.triton_op("memlab_tests::doubled", mutates_args={})
def doubled(x: torch.Tensor) -> torch.Tensor:
    result = torch.empty_like(x)
    torch.library.wrap_triton(scaled)[grid(x.numel())](x, result, x.numel(), 2.0, BLOCK=256)
    return result


doubled.register_autograd(lambda context, gradient: doubled(gradient))


@triton.jit
def split(source, first, second, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = places < count
    value = tl.load(source + places, mask=mask)
    tl.store(first + places, value * 0.5, mask=mask)
    tl.store(second + places, value * 0.25, mask=mask)


class Split(torch.autograd.Function):
    """Two results of one kernel, and backward of another."""

    @staticmethod
    def forward(context, x):
        first = torch.empty_like(x)
        second = torch.empty_like(x)
        split[grid(x.numel())](second=second, first=first, source=x, count=x.numel(), BLOCK=256)
        return first, second

    @staticmethod
    def backward(context, one, other):
        result = torch.empty_like(one)
        scaled[grid(one.numel())](one + other, result, one.numel(), 0.5, BLOCK=256)
        return result


class Kernels(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        first, second = Split.apply(doubled(self.up(x)))
        return self.down(first.relu() + second.sigmoid())


class Tritons(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Kernels() for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


def kernels_run(wrapped):
    model = wrapped(Tritons().cuda())
    for _ in range(2):
        model(torch.ones(BATCH, LENGTH, WIDTH, device="cuda")).backward()
    return model


def triton_kernels():
    return kernels_run(torch.compile)


def eager_triton_kernels():
    return kernels_run(lambda model: model)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x).square().mean()


def trained_with_budget(budget):
    functorch.activation_memory_budget = budget
    return blocks_run(torch.compile(Net().cuda()))


def half_of_the_memory():
    return trained_with_budget(0.5)


def none_of_the_memory():
    return trained_with_budget(0)


def blocks_run(model):
    for _ in range(2):
        model(torch.ones(BATCH, LENGTH, WIDTH, device="cuda")).backward()
    return model


def eager_blocks():
    return blocks_run(Net().cuda())


def exported_blocks():
    example = torch.ones(BATCH, LENGTH, WIDTH, device="cuda")
    return blocks_run(torch.export.export(Net().cuda(), (example,)).module())


def unflattened_blocks():
    example = torch.ones(BATCH, LENGTH, WIDTH, device="cuda")
    return blocks_run(torch.export.unflatten(torch.export.export(Net().cuda(), (example,))))


truth = compiled_truth.recorded()
torch.manual_seed(0)
held = globals()[case]()
torch.cuda.synchronize()
with open(out, "w") as file:
    json.dump({"allocated": torch.cuda.memory_allocated(), "truth": truth}, file)
