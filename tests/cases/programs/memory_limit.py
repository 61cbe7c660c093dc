"""Runs `memlab.accumulate` within `memory=` for four steps, with and without existing gradients.

memory_limit.py LOSS MIB: `pieces`, a mean over samples; `replay`, a loss that compares samples. Prints the peak allocated
bytes as JSON.
"""

import json
import sys
import warnings

import memlab
import torch
from torch import nn

warnings.filterwarnings("ignore")
kind, mebibytes = sys.argv[1], int(sys.argv[2])


def feed_forward():
    return nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))


def compare(outputs, targets):
    return (outputs @ outputs[:64].t()).logsumexp(1).mean()


inputs, targets = torch.randn(60_000, 512), torch.randint(512, (60_000,))
criterion = nn.CrossEntropyLoss() if kind == "pieces" else compare
largest = 0
for set_to_none in (True, False):
    model = nn.Sequential(*[feed_forward() for _ in range(12)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    for _ in range(4):
        torch.cuda.reset_peak_memory_stats()
        memlab.accumulate(model, inputs, criterion, targets=targets, memory=f"{mebibytes}MiB")
        largest = max(largest, torch.cuda.max_memory_allocated())
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
    del model, optimizer
print(json.dumps(largest))
