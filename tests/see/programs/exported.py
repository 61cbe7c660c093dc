"""Trains briefly, runs out of memory once, and writes PyTorch's snapshot of its memory next to the trace."""

import contextlib
import os
import pickle
import sys

import recording
import torch
import torch.nn as nn

torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))

    def forward(self, x):
        return self.body(x) + x


def main():
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    kept = []
    for _ in range(4):
        x = torch.randn(1024, 512, device="cuda")
        loss = (model(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(torch.empty(3 << 20, dtype=torch.uint8, device="cuda"))
    del kept[1]
    with contextlib.suppress(torch.OutOfMemoryError):
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    if torch.cuda.device_count() > 1:
        kept.append(torch.zeros(1000, device="cuda:1"))
    torch.cuda.synchronize()
    with open("snapshot.pickle", "wb") as file:
        pickle.dump(torch.cuda.memory._snapshot(), file)
    recording.until_sampled(*range(torch.cuda.device_count()))
    sys.stdout.flush()
    # Export this moment: the interpreter frees more memory on exit, after the snapshot.
    os._exit(0)


main()
