"""Trains a model with DDP (a single rank), FSDP or FSDP2 (one rank of two; the other is simulated).

    communication.py ddp|views|fsdp|fsdp2

Prints the bytes of all parameters of the model.
"""

import sys
import warnings

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.testing._internal.distributed.fake_pg import FakeStore

mode = sys.argv[1]
warnings.filterwarnings("ignore")
torch.cuda.set_device(0)
model = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(4)]).cuda()
if mode in ("ddp", "views"):
    dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore())
else:
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
print(sum(parameter.numel() * 4 for parameter in model.parameters()))
if mode in ("ddp", "views"):
    model = nn.parallel.DistributedDataParallel(
        model, device_ids=[0], bucket_cap_mb=8, gradient_as_bucket_view=mode == "views"
    )
elif mode == "fsdp":
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=0)
else:
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # Before PyTorch 2.6.
        from torch.distributed._composable.fsdp import fully_shard

    for layer in model:
        fully_shard(layer)
    fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    model(torch.randn(16, 1024)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
model(torch.randn(16, 1024)).sum().backward()
