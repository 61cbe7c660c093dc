"""Runs DistributedDataParallel and FSDP over NCCL, one process per device. Run with --devices 2."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

MIB = 1 << 20


def train(rank, folder):
    torch.cuda.set_device(rank)
    tensor = torch.arange(8.0).cuda()
    before = torch.cuda.mem_get_info()[0]
    # GIVEN a communicator, which has its own memory on the GPU
    dist.init_process_group("nccl", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    dist.all_reduce(tensor)
    assert before - torch.cuda.mem_get_info()[0] >= 32 * MIB
    # THEN collectives behave as if every rank had the data of this rank
    both = torch.empty(16, device="cuda")
    dist.all_gather_into_tensor(both, tensor)
    assert torch.equal(both.cpu(), torch.arange(8.0).repeat(2))

    # WHEN a model trains in parallel
    model = nn.parallel.DistributedDataParallel(nn.Linear(256, 256).cuda(), device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        model(torch.randn(8, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    # AND when it trains in shards, THEN it runs, and each device has its half
    from torch.distributed.fsdp import fully_shard

    sharded = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024)).cuda()
    whole = torch.cuda.memory_allocated()
    for layer in sharded:
        fully_shard(layer)
    fully_shard(sharded)
    assert torch.cuda.memory_allocated() < whole - 3 * MIB
    sharded(torch.randn(8, 1024, device="cuda")).sum().backward()
    dist.destroy_process_group()
    # An autograd thread that still holds Python objects when the interpreter exits aborts the process. This exit skips that.
    os._exit(0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, (folder,), nprocs=2)
    print("ok")
