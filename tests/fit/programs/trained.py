"""Trains a small transformer: `trained.py CASE`. Prints the peaks of PyTorch's allocator, in bytes, as JSON.

Cases: plain; changed, whose fifth block is the cheapest, and gets a tensor that the caller changes before backward; read,
which reads gradients after the step; language, with a large cross entropy; slow, whose first four blocks are expensive;
single, whose blocks are functions and not modules; loose, whose blocks are called one by one; compiled, by Inductor.
"""

import json
import sys

import torch
from torch import nn

CASE = sys.argv[1]
WIDTH = 512
CLASSES = 32768
SLOW = {"slow": range(4), "changed": {*range(8)} - {4}}.get(CASE, ())  # These blocks multiply large matrices, too.


class Block(nn.Module):
    def __init__(self, is_slow):
        super().__init__()
        self.is_slow = is_slow
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, shift):
        if self.is_slow:
            with torch.no_grad():
                large = torch.empty(4096, 4096, device=x.device)
                large @ large
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x)))) + shift


class Single(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ParameterList(nn.Parameter(torch.randn(4 * WIDTH, WIDTH) / 64) for _ in range(8))
        self.down = nn.ParameterList(nn.Parameter(torch.randn(WIDTH, 4 * WIDTH) / 64) for _ in range(8))

    def forward(self, x):
        for up, down in zip(self.up, self.down, strict=True):
            x = x + nn.functional.linear(nn.functional.gelu(nn.functional.linear(x, up)), down)
        return x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(index in SLOW) for index in range(8))
        if CASE == "language":
            self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        self.shift = torch.zeros(1, device=x.device)
        for index, block in enumerate(self.blocks):
            x = block(x, self.shift if index == 4 else 0.0)
        return self.head(x) if CASE == "language" else x


def loss_of(model):
    batch = 8 if CASE == "language" else 64
    x = torch.randn(batch, 512, WIDTH, device="cuda")
    if CASE == "loose":
        for block in model.blocks:
            x = block(x, 0.0)
        return x.square().mean()
    y = model(x)
    if CASE != "language":
        return y.square().mean()
    target = torch.zeros(batch * 512, dtype=torch.long, device="cuda")
    return torch.nn.functional.cross_entropy(y.flatten(0, 1), target)


def main():
    model = (Single() if CASE == "single" else Model()).cuda()
    if CASE == "compiled":
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(8):
        loss = loss_of(model)
        if CASE == "changed":
            model.shift.add_(1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if CASE == "read":
            [parameter.grad for parameter in model.parameters()]
    stats = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    print(json.dumps({kind: stats[f"{kind}_bytes.all.peak"] for kind in ("allocated", "reserved")} | {"used": total - free}))


main()
