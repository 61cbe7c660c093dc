"""Trains a small GPT on characters: attention, AdamW, gradient clipping, evaluation every few steps.

An ordinary PyTorch program, without any code for memlab:

    python examples/train_gpt.py --steps 40
    memlab run --live -- python examples/train_gpt.py --steps 40
"""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

TEXT = "to see where the memory went, look at who asked for it; " * 400


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, time_, width = x.shape
        q, k, v = self.qkv(x).view(batch, time_, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(attended.transpose(1, 2).reshape(batch, time_, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary, width, layers, heads, context):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def batches(data, batch, context, device):
    while True:
        starts = torch.randint(len(data) - context - 1, (batch,)).tolist()
        x = torch.stack([data[start : start + context] for start in starts])
        y = torch.stack([data[start + 1 : start + context + 1] for start in starts])
        yield x.to(device), y.to(device)


def loss_of(model, x, y):
    logits = model(x)
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())


@torch.no_grad()
def evaluate(model, data, count):
    model.eval()
    losses = [loss_of(model, *next(data)).item() for _ in range(count)]
    model.train()
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--evaluate-every", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds to sleep after each step, to watch it")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    letters = sorted(set(TEXT))
    data = torch.tensor([letters.index(letter) for letter in TEXT])
    split = len(data) * 9 // 10
    training = batches(data[:split], args.batch, args.context, device)
    validation = batches(data[split:], args.batch, args.context, device)

    model = GPT(len(letters), args.width, args.layers, args.heads, args.context).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} million parameters on {device}")

    for step in range(args.steps):
        x, y = next(training)
        loss = loss_of(model, x, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % args.evaluate_every == 0:
            print(f"step {step + 1}: training {loss.item():.3f}, validation {evaluate(model, validation, 4):.3f}")
        time.sleep(args.pause)
    if device.type == "cuda":
        print(f"peak allocated: {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
