"""Trains on the second device. Something lands on the first one on its way, unless code is given that is run before."""

import sys
import time

import torch
from torch import nn

if len(sys.argv) > 1:
    exec(sys.argv[1])
start = torch.ones(4, device="cuda")
with torch.cuda.device(1):
    model = nn.Linear(2048, 2048, device="cuda")
    for _ in range(3):
        model(start.to("cuda").mean().expand(8, 2048)).sum().backward()
time.sleep(1)  # memlab asks NVML four times a second what the process takes.
