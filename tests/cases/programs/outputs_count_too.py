"""Runs `memlab.accumulate` with dropout and a loss that compares 100,000 outputs. With their gradients, these take a fifth
of a card of 2 GiB. Prints the number of out-of-memory errors in each of three steps as JSON."""

import json

import memlab
import torch
from torch import nn


def feed_forward():
    return nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))


inputs = torch.randn(100_000, 512)
model = nn.Sequential(*[feed_forward() for _ in range(12)], nn.Dropout(0.1)).cuda()
ooms = []
for _ in range(3):
    before = torch.cuda.memory_stats()["num_ooms"]
    memlab.accumulate(model, inputs, lambda outputs: (outputs @ outputs[:16].t()).logsumexp(1).mean())
    ooms.append(torch.cuda.memory_stats()["num_ooms"] - before)
    model.zero_grad()
print(json.dumps(ooms))
