"""Trains briefly, loads libmemlab (argv[1]) and continues training."""

import ctypes
import sys

import recording
import torch
import torch.nn as nn

earlier = torch.empty(1000, device="cuda")
del earlier
torch.cuda.empty_cache()
earlier_model = nn.Linear(512, 512, bias=False).cuda()
kept = [torch.empty(size << 20, dtype=torch.uint8, device="cuda") for size in (3, 5, 7)]
before = torch.cuda.memory_allocated()
ctypes.CDLL(sys.argv[1])

model = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 64)).cuda()
for _ in range(3):
    y = model(torch.randn(16, 64, device="cuda"))
    y.sum().backward()
kept.pop(1)
earlier_model(torch.randn(8, 512, device="cuda"))
recording.until_sampled()
print(before, torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
