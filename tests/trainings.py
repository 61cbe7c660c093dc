"""Training with `memlab.InfinityBatch`, and the same in plain PyTorch loops."""

import copy

import memlab
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


def digits(count=50):
    """Small images whose labels are the positions of their bright spots."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (count,), generator=generator)
    images = torch.randn(count, 1, 8, 8, generator=generator) * 0.3
    for image, label in zip(images, labels, strict=True):
        image[0, label // 2 * 4 : label // 2 * 4 + 4, label % 2 * 4 : label % 2 * 4 + 4] += 1
    return TensorDataset(images, labels)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.picture, self.answer = nn.Conv2d(1, 8, 3), nn.Linear(8 * 36, 4)

    def forward(self, x):
        return self.answer(functional.relu(self.picture(x)).flatten(1))


def training(**options):
    """An InfinityBatch set up as in the seed's README, and a twin for training in a plain loop."""
    ib = memlab.InfinityBatch(verbose=False, micro_batch=7, **options)
    ib.model = Reader()
    ib.criterion = nn.CrossEntropyLoss()
    ib.optimizer = torch.optim.Adam(ib.model.parameters())
    ib.dataloader = DataLoader(digits(), batch_size=20)
    return ib, copy.deepcopy(ib.model)


def by_hand(model, epochs):
    """Losses by epoch and batch."""
    optimizer, losses = torch.optim.Adam(model.parameters()), []
    for _ in range(epochs):
        losses.append([])
        for images, labels in DataLoader(digits(), batch_size=20):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses[-1].append(float(loss.detach()))
    return losses


def assert_same(model, twin):
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
