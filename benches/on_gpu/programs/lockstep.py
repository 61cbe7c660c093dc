"""BatchNorm in batches larger than the GPU: `lockstep.py exact` or `speed`. Prints JSON lines."""

import json
import statistics
import sys
import time
from typing import Any

import memlab
import torch
from spread import distance, gradients, is_within, layers_in_pieces, spread
from torch import nn


class Residual(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(inplace=True),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outer),
        )
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inner == outer
            else nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
        )

    def forward(self, x):
        return (self.body(x) + self.shortcut(x)).relu_()


def network():
    """ResNet-18's layers."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inner = 64
    for outer, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Residual(inner, outer, stride), Residual(outer, outer, 1)]
        inner = outer
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100)).cuda()


def pictures(count, side=224):
    numbers = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, side, side, generator=numbers), torch.randint(0, 100, (count,), generator=numbers)


def exact():
    """Distance from the whole batch's gradients in float64, and of running statistics, for both exact ways."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    images, labels = pictures(24, 64)

    def plainly(dtype, order, size=None):
        model = network().to(dtype)
        with layers_in_pieces(model, size):
            nn.functional.cross_entropy(model(images[order].to("cuda", dtype)), labels[order].cuda()).backward()
        return model

    whole = plainly(torch.float64, torch.arange(len(images)))
    expected = gradients(whole)
    for dtype in (torch.float64, torch.float32):
        for micro_batch in (None, 7, 1):
            model = network().to(dtype)
            memlab.accumulate(model, images.to(dtype), nn.CrossEntropyLoss(), targets=labels, micro_batch=micro_batch)
            pairs = zip(model.buffers(), whole.buffers(), strict=True)
            row = {
                "dtype": str(dtype),
                "micro_batch": micro_batch,
                "gradients": distance(gradients(model), expected),
                "statistics": max(float((one.double() - other).abs().max()) for one, other in pairs),
            }
            if dtype == torch.float32:
                sizes = {None, micro_batch}
                runs = [lambda order, size=size: gradients(plainly(torch.float32, order, size)) for size in sizes]
                row["spread"] = max(spread(run, expected, len(images)) for run in runs)
                row["is_within"] = is_within(row["gradients"], row["spread"])
            print(json.dumps(row), flush=True)


# Arguments of memlab.accumulate; None: plain PyTorch.
WAYS: dict[str, dict[str, Any] | None] = {
    "resident": None,
    "at once": {},
    "at once, 4GiB": {"memory": "4GiB"},
    "lockstep of 128": {"micro_batch": 128},
    "lockstep of 128, 4GiB": {"micro_batch": 128, "memory": "4GiB"},
}


def speed():
    """Seconds per step and peak memory, for the whole batch resident and for both exact ways."""
    loss_fn = nn.CrossEntropyLoss()
    for batch in (512, 2048):
        images, labels = pictures(batch)
        model = network()

        for name, options in WAYS.items():
            seconds = []
            for _ in range(5):
                model.zero_grad()
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                begin = time.perf_counter()
                if options is None:
                    loss_fn(model(images.cuda()), labels.cuda()).backward()
                else:
                    memlab.accumulate(model, images, loss_fn, targets=labels, **options)
                torch.cuda.synchronize()
                seconds.append(time.perf_counter() - begin)
            row = {"batch": batch, "way": name, "seconds": round(statistics.median(seconds[2:]), 3)}
            print(json.dumps({**row, "peak_mib": torch.cuda.max_memory_allocated() >> 20}), flush=True)


if __name__ == "__main__":
    {"exact": exact, "speed": speed}[sys.argv[1]]()
