"""Keeps tensors outside of modules: averaged weights in lists, a data set, a batch that is created once; or has no module at
all. Prints the allocator's bytes for each."""

import sys

import torch
from torch import nn


def bytes_of(*tensors):
    return sum(-(-tensor.nbytes // 512) * 512 for tensor in tensors)


if sys.argv[1:] == ["without"]:
    first = torch.ones(1000, 1000, device="cuda")
    second = [first + number for number in range(3)]
    print(bytes_of(first, *second), 0)
    sys.exit()

model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 16)).cuda()
averages = [weight.clone() for weight in model.parameters()]
bounds = [weight.detach().abs() for weight in model.parameters()]
data = torch.ones(4096, 256, device="cuda")
noise = {"of": [torch.ones(64, 256, device="cuda")]}


class WithNoise(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model

    def forward(self, batch, noise):
        return self.model(batch + noise["of"][0])


training = WithNoise()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    batch = data[step * 64 : step * 64 + 64].clone()
    training(batch, noise=noise).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for number, weight in enumerate(model.parameters()):
            averages[number].mul_(0.9).add_(weight, alpha=0.1)
print(bytes_of(*averages, *bounds, data), bytes_of(batch, *noise["of"]))
