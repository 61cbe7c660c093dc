"""Trains a model on two devices by nn.DataParallel, whose copies of it live for one forward."""

import torch
import torch.nn as nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)) for _ in range(2))

    def forward(self, x):
        for layer in self.layer:
            x = torch.relu(layer(x))
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = Encoder(), nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.encoder(x))


model = nn.DataParallel(Net().cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.ones(128, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
