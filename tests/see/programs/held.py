"""Modules that hold weights and are never called: averaged weights, a copy, and an unused module.

    held.py OUT.json

OUT: {address: [category, name]} of the tensors that they hold at the end, and the bytes of the batch next to them.
"""

import copy
import json
import sys

import torch
import torch.nn as nn
from torch.optim.swa_utils import AveragedModel

model = nn.Sequential(nn.Linear(40, 50), nn.BatchNorm1d(50)).cuda()
copied = copy.deepcopy(model)
averaged = AveragedModel(model)
spare = nn.ModuleDict({"table": nn.Embedding(30, 40)}).cuda()
optimizer = torch.optim.SGD([*model.parameters(), *spare.parameters()], lr=0.1)
for _ in range(3):
    batch = torch.ones(8, 40, device="cuda")
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()
    averaged.update_parameters(model)
    with torch.no_grad():
        for kept, now in zip(copied.parameters(), model.parameters(), strict=True):
            kept.mul_(0.9).add_(now, alpha=0.1)

truth = {}
for prefix, module in (("", model), ("Sequential.", copied), ("AveragedModel.", averaged), ("ModuleDict.", spare)):
    for name, parameter in module.named_parameters():
        truth[parameter.data_ptr()] = ["parameter", prefix + name]
    for name, buffer in module.named_buffers():
        if buffer.is_cuda:
            truth[buffer.data_ptr()] = ["buffer", prefix + name]
with open(sys.argv[1], "w") as file:
    json.dump({"held": truth, "batch": batch.numel() * batch.element_size()}, file)
