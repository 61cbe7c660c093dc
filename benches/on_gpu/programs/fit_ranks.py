"""Trains two ranks on one card by gloo, or a GAN of one class. Prints a hash of the weights, the step and PyTorch's peak.

    torchrun --nproc-per-node 2 fit_ranks.py ddp
    fit_ranks.py gan

Beside `memlab run --fit 4GiB --` (ddp), `--fit 8GiB` (gan) and `--limit 5GiB --on-limit spill` (ddp), with
CUBLAS_WORKSPACE_CONFIG=:4096:8.
"""

import hashlib
import json
import os
import sys
import time

import torch
from torch import nn

torch.use_deterministic_algorithms(True, warn_only=True)
WIDTH, STEPS = 1024, 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(8))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def batch():
    return torch.randn(32, 512, WIDTH, device="cuda")


def train(step, *models):
    times = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        loss = step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    digest = hashlib.sha256()
    for model in models:
        for value in model.state_dict().values():
            digest.update(value.cpu().numpy().tobytes())
    figures = {"loss": loss.item(), "weights": digest.hexdigest()[:16], "step_ms": 1e3 * sorted(times)[STEPS // 2]}
    print(json.dumps(figures | {"reserved_gib": torch.cuda.max_memory_reserved() / 2**30}), flush=True)


def ddp():
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = Net().cuda()
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters())
    torch.manual_seed(int(os.environ["RANK"]))

    def step():
        optimizer.zero_grad()
        loss = wrapped(batch()).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    train(step, model)
    torch.distributed.destroy_process_group()


def gan():
    torch.manual_seed(0)
    generator, critic = Net().cuda(), Net().cuda()
    optimizers = [torch.optim.Adam(model.parameters(), lr=1e-4) for model in (generator, critic)]

    def step():
        for model, optimizer in zip((critic, generator), reversed(optimizers), strict=True):
            made = generator(batch())
            loss = critic(made.detach() if model is critic else made).square().mean()
            model.zero_grad()
            loss.backward()
            optimizer.step()
        return loss

    train(step, generator, critic)


globals()[sys.argv[1]]()
