"""Runs out of memory three times and prints PyTorch's counts at each failure as JSON: requested, allocated, reserved.

A block in use keeps its segment of 20 MiB, so PyTorch has reserved more than it has allocated.
"""

import json

import torch

ASKED = 1 << 40
kept, counted = [], []
for mib in (3, 12, 0):
    if mib:
        kept.append(torch.empty(mib << 20, dtype=torch.uint8, device="cuda"))
    else:
        kept.pop(0)
    try:
        torch.empty(ASKED, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        counted.append([ASKED, torch.cuda.memory_allocated(), torch.cuda.memory_reserved()])
print(json.dumps(counted))
