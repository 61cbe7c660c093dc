"""Trains on the second device. A tensor is created on the first device before, unless an argument with code prevents it.

Ends when memlab's trace, in the folder, has NVML's last figures of the cards: a thread reads them several times a second.
"""

import re
import sys
import time
from pathlib import Path

import torch
from torch import nn

if len(sys.argv) > 1:
    exec(sys.argv[1])
start = torch.ones(4, device="cuda")
with torch.cuda.device(1):
    model = nn.Linear(2048, 2048, device="cuda")
    for _ in range(3):
        model(start.to("cuda").mean().expand(8, 2048)).sum().backward()


def used_by_trace():
    """Bytes in use on each card, by the last sample."""
    (trace,) = Path().glob("*.jsonl")
    samples = re.findall(rb'^\["used",\d+,(\d+),(\d+),', trace.read_bytes(), re.MULTILINE)
    return sorted(int(nbytes) for nbytes in dict(samples).values())


def used():
    """Bytes in use now on each card that has a tensor: querying another card would allocate memory there."""
    pairs = (torch.cuda.mem_get_info(device) for device in {start.device, model.weight.device})
    return sorted(total - free for free, total in pairs)


give_up = time.monotonic() + 240  # Longer than any machine needs: only a hang fails.
while used_by_trace() != used():
    assert time.monotonic() < give_up, (used_by_trace(), used())
    time.sleep(0.01)
