"""Trains a model for a few steps with deterministic kernels, and prints a hash of losses, gradients, weights, buffers and
random state: `fit_truth.py gpt|conv [STEPS]`. Run it as it is and under `memlab run --fit SIZE`: the hashes are equal.
"""

import hashlib
import sys

import torch
from torch import nn
from torch.nn import functional as F

WHAT, STEPS = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 4
CLASSES = 20011  # Odd, so that rows have all alignments. The loss is then large enough to be computed in rows.


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, w // 64, 64).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(b, t, w)))
        return x + self.dropout(self.mlp(x))


class Convolutions(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x):
        return F.relu(x + self.norm(self.convolutions(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        if WHAT == "gpt":
            self.first, self.last = nn.Embedding(CLASSES, 512), nn.Linear(512, CLASSES)
            self.blocks = nn.ModuleList(Block(512) for _ in range(12))
        else:
            self.first, self.last = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 3, 1)
            self.blocks = nn.ModuleList(Convolutions(64) for _ in range(12))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def data():
    if WHAT == "gpt":
        return torch.randint(0, CLASSES, (8, 512), device="cuda")
    return torch.randn(8, 3, 128, 128, device="cuda")


def main():
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen = hashlib.sha256()

    def see(tensor):
        seen.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())

    for _ in range(STEPS):
        x = data()
        with torch.autocast("cuda", torch.bfloat16):
            y = model(x)
            loss = F.cross_entropy(y.flatten(0, 1), x.flatten()) if WHAT == "gpt" else F.mse_loss(y, x)
        del y
        optimizer.zero_grad()
        loss.backward()
        see(loss.reshape(1))
        for parameter in model.parameters():
            see(parameter.grad.reshape(-1))
        optimizer.step()
    for value in model.state_dict().values():
        see(value.reshape(-1))
    see(torch.cuda.get_rng_state())
    peak = torch.cuda.max_memory_reserved() / 2**20
    print(f"{WHAT}: {seen.hexdigest()[:16]} loss {loss.item():.6f} reserved {peak:.0f} MiB", flush=True)


main()
