"""Runs an evaluation, or training with `train`, that keeps its outputs on the GPU with `keep`. Prints PyTorch's own peak."""

import sys

import torch
from torch import nn

PASSES = 12


class Net(nn.Module):
    """One line of its forward allocates both temporaries and the result."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(512, 512)

    def forward(self, x):
        return torch.relu(self.linear(x) * 2) + x


keeps, trains = "keep" in sys.argv, "train" in sys.argv
net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
kept = []
for _ in range(PASSES):
    with torch.set_grad_enabled(trains):
        output = net(torch.randn(2048, 512, device="cuda"))
    if trains:
        optimizer.zero_grad()
        output.square().mean().backward()
        optimizer.step()
    kept.append(output.detach() if keeps else output.sum().item())
print(torch.cuda.max_memory_allocated())
