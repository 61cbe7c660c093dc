"""Trains modules whose memory is easily attributed to the wrong layer: `odd_modules.py KIND`."""

import sys

import torch
from torch import nn

ROWS, WORDS = 20_000, 50_257
IDS = torch.randint(ROWS, (64, 8))


def one_by_one():
    """A list whose modules are called, but not the list."""
    tables = nn.ModuleList(nn.EmbeddingBag(ROWS, 64, mode="sum") for _ in range(3)).cuda()
    return tables, lambda: sum(table(IDS.cuda()).sum() for table in tables)


def large():
    """A parameter whose block is larger than the parameter."""
    words = nn.Embedding(WORDS, 256).cuda()
    return words, lambda: words(IDS.cuda()).sum()


def sparse():
    words = nn.Embedding(WORDS, 256, sparse=True).cuda()
    return words, lambda: words(IDS.cuda()).sum()


class Called(nn.Module):
    """Does not use PyTorch's `__call__`."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(512, 512), nn.Linear(512, 512)

    def __call__(self, x):
        return self.forward(x)

    def forward(self, x):
        return self.second(self.first(x).relu())


def own_call():
    model = Called().cuda()
    return model, lambda: model(torch.ones(256, 512, device="cuda")).sum()


model, loss = globals()[sys.argv[1]]()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()
torch.cuda.synchronize()
print(sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()))
