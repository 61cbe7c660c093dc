"""Trains with a DataLoader whose dataset reads another one, and prints the nanoseconds of each wait for a batch.

Prints a line for each step: the time within the dataset, then the time of the whole `next`.
"""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Slow(Dataset):
    def __init__(self):
        self.inner = iter(DataLoader(TensorDataset(torch.randn(64, 8))))
        self.spent = 0

    def __len__(self):
        return 12

    def __getitem__(self, index):
        begun = time.monotonic_ns()
        next(self.inner)
        time.sleep(0.01 if index % 2 else 0.002)
        self.spent += time.monotonic_ns() - begun
        return torch.randn(8)


dataset = Slow()
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters())
batches = iter(DataLoader(dataset, batch_size=2))
waits = []
while True:
    begun, spent = time.monotonic_ns(), dataset.spent
    try:
        batch = next(batches)
    except StopIteration:
        break
    waits.append((dataset.spent - spent, time.monotonic_ns() - begun))
    model(batch.cuda()).sum().backward()
    optimizer.step()
for inner, outer in waits:
    print(inner, outer)
sys.stdout.flush()
