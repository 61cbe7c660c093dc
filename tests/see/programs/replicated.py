"""Trains a model on two devices with nn.DataParallel, whose replicas live for one forward."""

import torch
import torch.nn as nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))
        self.register_buffer("shift", torch.ones(64))

    def forward(self, x):
        return x * self.weight + self.shift


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.ModuleList(nn.Sequential(Scaled(), Scaled()) for _ in range(2))

    def forward(self, x):
        for layer in self.layer:
            x = torch.relu(layer(x))
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = Encoder(), Scaled()

    def forward(self, x):
        return self.head(self.encoder(x))


model = nn.DataParallel(Net().cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.ones(128, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
