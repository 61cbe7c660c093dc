"""Trains a convolutional network with BatchNorm on a simulated GPU whose memory is smaller than the activations. Reports
whether plain PyTorch fits, and PyTorch's peak allocation under memlab."""

import json

import memlab
import torch
from torch import nn


def network():
    layers = []
    for index in range(8):
        layers += [nn.Conv2d(3 if index == 0 else 32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).cuda()


def main():
    images, labels = torch.randn(48, 3, 96, 96), torch.randint(0, 10, (48,))
    model, loss_fn = network(), nn.CrossEntropyLoss()
    try:
        loss_fn(model(images.cuda()), labels.cuda()).backward()
        plain = "fits"
    except torch.cuda.OutOfMemoryError:
        plain = "out of memory"
    del model
    torch.cuda.empty_cache()
    model = network()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(4):
        model.zero_grad()
        memlab.accumulate(model, images, loss_fn, targets=labels)
    row = {
        "plain": plain,
        "peak": torch.cuda.max_memory_allocated(),
        "missing": [name for name, parameter in model.named_parameters() if parameter.grad is None],
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
