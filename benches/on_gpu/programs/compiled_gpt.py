"""`compiled_gpt.py MODE LAYERS` trains a small GPT: eager, or compiled in one of PyTorch's modes.

It prints two lines of JSON: losses, and times in seconds.
"""

import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional

WIDTH, WORDS, BATCH, STEPS = 512, 256, 16, 48
LAYERS = int(sys.argv[2])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        parts = self.qkv(self.before_attention(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (8, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.before_mlp(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(4096, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4096, bias=False)

    def forward(self, words, targets):
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def main():
    mode = sys.argv[1]
    torch.manual_seed(0)
    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    run = model if mode == "eager" else torch.compile(model, mode=None if mode == "default" else mode)
    generator = torch.Generator().manual_seed(1)
    times, losses = [], []
    for _ in range(STEPS):
        words = torch.randint(4096, (BATCH, WORDS + 1), generator=generator).cuda()
        start = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(words[:, :-1], words[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        losses.append(float(loss))
    print(json.dumps({"result": losses}))
    print(json.dumps({"first": times[0] + times[1], "step": sorted(times[16:])[len(times[16:]) // 2]}))


main()
