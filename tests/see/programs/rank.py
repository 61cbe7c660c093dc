"""One rank of a torchrun job on gloo: trains briefly on its own device."""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
device = torch.device("cuda", rank % torch.cuda.device_count())
model = torch.nn.Linear(64, 64 * (rank + 1)).to(device)
for _ in range(3):
    model(torch.randn(16, 64, device=device)).sum().backward()
total = torch.tensor([rank])
dist.all_reduce(total)
print(f"rank {rank} of {dist.get_world_size()}: {total.item()}, local {os.environ['LOCAL_RANK']}\n", end="", flush=True)
dist.destroy_process_group()
