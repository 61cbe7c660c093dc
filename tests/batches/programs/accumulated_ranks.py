"""One of two ranks on the CPU: `accumulated_ranks.py FILE RANK`. Prints micro-batch errors against full-batch gradients."""

import json
import sys

import memlab
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from two_ranks import IMAGES, LABELS, SHARES, begin, by_ranks, by_samples, contrastive, end

file, rank = sys.argv[1], int(sys.argv[2])
begin(file, rank)

WEIGHTS = torch.tensor([0.3, 2.0, 1.0, 0.7])


class Model(nn.Sequential):
    def __init__(self):
        torch.manual_seed(1)
        super().__init__(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 4))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.steps += 1
        return super().forward(x)


errors = {}
for name, loss_fn, expected in (("mean", nn.CrossEntropyLoss(), by_samples), ("coupled", contrastive, by_ranks)):
    for size in (20, 4, 3):
        for steps in (1, 2):
            model, twin = DistributedDataParallel(Model()), Model()
            images, labels = IMAGES[SHARES[rank]], LABELS[SHARES[rank]]
            for _ in range(steps):
                targets = labels if name == "mean" else None
                memlab.accumulate(model, images, loss_fn, targets=targets, micro_batch=size)
                expected(twin).backward()
            pairs = zip(model.module.parameters(), twin.parameters(), strict=True)
            errors[f"{name} {size} {steps}"] = max(float((one.grad - two.grad).abs().max()) for one, two in pairs)
            assert model.module.steps == steps


# Micro-batches from an iterable, a different number on each rank. The gradients of the previous batch are already averaged.
for name, loss_fn, expected in (("mean", nn.CrossEntropyLoss(), by_samples), ("coupled", contrastive, by_ranks)):
    model, twin = DistributedDataParallel(Model()), Model()
    images, labels = IMAGES[SHARES[rank]], LABELS[SHARES[rank]]
    for size in (5, 2):
        parts = list(zip(images.split(size), labels.split(size), strict=True)) if name == "mean" else images.split(size)
        pieces = torch.utils.data.DataLoader(parts, batch_size=None)
        memlab.accumulate(model, pieces, loss_fn)
        expected(twin).backward()
    pairs = zip(model.module.parameters(), twin.parameters(), strict=True)
    errors[f"iterable, {name}"] = max(float((one.grad - two.grad).abs().max()) for one, two in pairs)


class WithBatchNorm(nn.Sequential):
    """Each rank normalises with the statistics of only its samples."""

    def __init__(self):
        torch.manual_seed(1)
        super().__init__(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))


def of_all(twins):
    """Mean over the targets of all ranks: each rank's sum comes from its own model, with the same parameters."""
    losses = [
        functional.cross_entropy(twin(IMAGES[share]), LABELS[share], WEIGHTS, reduction="sum")
        for twin, share in zip(twins, SHARES, strict=True)
    ]
    return sum(losses) / WEIGHTS[LABELS[LABELS != -100]].sum()


for size in (None, 20, 4, 3):
    model, twins = DistributedDataParallel(WithBatchNorm()), [WithBatchNorm() for _ in SHARES]
    images, labels = IMAGES[SHARES[rank]], LABELS[SHARES[rank]]
    for _ in range(2):
        memlab.accumulate(model, images, nn.CrossEntropyLoss(WEIGHTS), targets=labels, micro_batch=size)
        of_all(twins).backward()
    ours = [parameter.grad for parameter in model.module.parameters()]
    theirs = [one.grad + two.grad for one, two in zip(*(twin.parameters() for twin in twins), strict=True)]
    errors[f"BatchNorm {size}"] = max(float((one - two).abs().max()) for one, two in zip(ours, theirs, strict=True))
# A single write keeps the lines of two ranks apart.
print(json.dumps(errors) + "\n", end="", flush=True)
end(file, rank)
