"""Runs `memlab.chunk` at several GPU capacities, with a ModuleList wholly on the CPU and its parent not.

Prints a JSON object that maps each capacity to the device of the model's result.
"""

import json

import memlab
import torch
from torch import nn


class UNetLike(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(64, 64)
        self.up = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x):
        x = self.stem(x)
        for layer in self.up:
            x = layer(x)
        return x


A_LAYER = 4160
found = {}
for capacity in (0, A_LAYER, 2 * A_LAYER, 5 * A_LAYER):
    model = memlab.chunk(UNetLike().eval(), "cuda", capacity)
    with torch.no_grad():
        model(torch.randn(2, 64))  # Records, on the CPU.
        found[capacity] = list(model(torch.randn(2, 64)).shape)
print(json.dumps(found))
