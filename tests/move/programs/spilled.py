"""Trains with more memory than there is.

spilled.py CASE [STEPS]   the case decides what takes the memory: logits, state, activations, step (the optimizer's
                          temporary tensors), data (which nothing can move)

Prints PyTorch's allocated and reserved bytes at their peak, and the least free bytes of the card during a step.
"""

import json
import sys

import torch
from torch import nn
from torch.nn import functional as F

MIB = 1 << 20


class Network(nn.Module):
    def __init__(self, width, depth, classes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.head = nn.Linear(width, classes, bias=False)

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)


def main():
    case, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10
    width, depth, classes, rows = {
        "logits": (64, 2, 16384, 2048),
        "state": (4096, 4, 8, 4096),
        "activations": (1024, 12, 8, 4096),
        "step": (4096, 4, 8, 64),
        "data": (64, 2, 8, 64),
    }[case]
    torch.manual_seed(0)
    model = Network(width, depth, classes).cuda()
    optimizer = torch.optim.Adam(model.parameters(), foreach=case == "step")
    kept = [torch.empty(400 * MIB, dtype=torch.uint8, device="cuda")] if case == "data" else []
    free = []
    for _ in range(steps):
        x = torch.zeros(rows, width, device="cuda")
        loss = F.cross_entropy(model(x), torch.zeros(rows, dtype=torch.int64, device="cuda"))
        free.append(torch.cuda.mem_get_info()[0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    del kept
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(json.dumps({"peak": peak, "reserved": reserved, "free": min(free)}))


main()
