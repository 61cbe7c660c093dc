"""Convolutions and batch normalization train through cuDNN, in both memory formats."""

import torch
from torch import nn

assert torch.backends.cudnn.is_available()


def train(memory_format, dtype):
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ).cuda()
    model = model.to(memory_format=memory_format)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        x = torch.randn(8, 3, 32, 32, device="cuda").to(memory_format=memory_format)
        with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
            loss = nn.functional.cross_entropy(model(x), torch.zeros(8, dtype=torch.long, device="cuda"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()  # any value, since no kernel runs
    with torch.no_grad():
        assert model.eval()(x).shape == (8, 10)


train(torch.contiguous_format, torch.float32)
train(torch.channels_last, torch.float32)
torch.backends.cudnn.benchmark = True
train(torch.channels_last, torch.bfloat16)
print("ok")
