"""One rank of training under torchrun: `job_ranks.py [keeps|fails|strays]`; the argument makes one rank misbehave."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.append(str(Path(__file__).parents[2] / "see" / "programs"))
import recording

what = sys.argv[1] if len(sys.argv) > 1 else None
rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
if what == "strays" and rank == 2:
    flag = torch.zeros(1, device="cuda")  # Before set_device: on the device of rank 0.
torch.cuda.set_device(local_rank)
dist.init_process_group("gloo")
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for _ in range(4):
    model(torch.randn(64, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if what == "keeps" and rank == 3:
        kept.append(torch.empty(8 << 20, dtype=torch.uint8, device="cuda"))
    dist.barrier()
if what == "fails" and rank == 1:
    kept.append(torch.empty(6 << 30, dtype=torch.uint8, device="cuda"))
    kept.append(torch.empty(4 << 30, dtype=torch.uint8, device="cuda"))
if what == "strays" and rank == 2:
    recording.until_sampled(0, local_rank)
dist.barrier()
dist.destroy_process_group()
