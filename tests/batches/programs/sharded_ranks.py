"""One of two ranks on the CPU with shards of a model: `sharded_ranks.py FILE RANK`.

Prints the error of micro-batch gradients against the full batch, the number of gradient averages, and the refused calls."""

import json
import sys

import memlab
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.nn import functional
from two_ranks import IMAGES, LABELS, SHARES, begin, by_ranks, by_samples, contrastive, end

file, rank = sys.argv[1], int(sys.argv[2])
begin(file, rank)
MESH = init_device_mesh("cpu", (2,))

MINE = SHARES[rank]


class Model(nn.Sequential):
    def __init__(self):
        torch.manual_seed(1)
        super().__init__(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 4))

    def forward(self, x, labels=None):
        outputs = super().forward(x)
        return outputs if labels is None else {"loss": functional.cross_entropy(outputs, labels)}


def sharded(model):
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=MESH)
    return fully_shard(model, mesh=MESH)


def in_pieces(model, way, size):
    images, labels = IMAGES[MINE], LABELS[MINE]
    if way == "own":
        return memlab.accumulate(model, {"x": images, "labels": labels}, micro_batch=size)
    if way == "mean":
        return memlab.accumulate(model, images, nn.CrossEntropyLoss(), targets=labels, micro_batch=size)
    return memlab.accumulate(model, images, contrastive, micro_batch=size)


AVERAGED = []
reduce = _fsdp_param_group.foreach_reduce
_fsdp_param_group.foreach_reduce = lambda *given, **more: (AVERAGED.append(1), reduce(*given, **more))[1]

errors, averaged = {}, {}
for way, expected in (("mean", by_samples), ("coupled", by_ranks), ("own", by_samples)):
    for size in (None, 20, 4, 3):
        model, twin = sharded(Model()), Model()
        for step in range(2):
            AVERAGED.clear()
            loss = in_pieces(model, way, size).clone()
            dist.all_reduce(loss)
            averaged[f"{way} {size} {step}"] = len(AVERAGED)
            whole = expected(twin)
            whole.backward()
            errors[f"{way} {size} {step}, loss"] = float((loss / 2 - whole).abs())
        pairs = zip(model.parameters(), twin.parameters(), strict=True)
        errors[f"{way} {size}"] = max(float((one.grad.full_tensor() - two.grad).abs().max()) for one, two in pairs)
        # The model remains usable: an ordinary backward is averaged.
        model.zero_grad()
        twin.zero_grad()
        model(IMAGES[MINE]).square().sum().backward()
        twin(IMAGES).square().sum().div(2).backward()
        pairs = zip(model.parameters(), twin.parameters(), strict=True)
        errors[f"{way} {size}, after"] = max(float((one.grad.full_tensor() - two.grad).abs().max()) for one, two in pairs)

refused = []
normalised = fully_shard(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8)), mesh=MESH)
for model, inputs, size in (
    (sharded(Model()), IMAGES[MINE], 1),  # 13 micro-batches on one rank, 8 samples on the other.
    (normalised, IMAGES[MINE], 4),
    (sharded(Model()), iter([IMAGES[MINE]]), 4),
):
    try:
        memlab.accumulate(model, inputs, contrastive, micro_batch=size)
    except (ValueError, RuntimeError) as error:
        refused.append(str(error))
# A single write keeps the lines of two ranks apart.
print(json.dumps({"errors": errors, "averaged": averaged, "refused": refused}) + "\n", end="", flush=True)
end(file, rank)
