"""One rank of a training in parallel: `parallel_ranks.py KIND`, started by torchrun with a card for each rank.

Prints, as JSON on a line of its own, what PyTorch knows of this rank.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

WIDTH = 256


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, blocks=4):
        super().__init__()
        self.blocks = nn.ModuleDict({str(number): Block() for number in range(blocks)})
        self.head = nn.Linear(WIDTH, 64)

    def forward(self, x):
        for block in self.blocks.values():
            x = block(x)
        return self.head(x) if self.head is not None else x


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.down(nn.functional.relu(self.up(x)))


class Experts(nn.Module):
    """A mixture of experts, of which each rank holds two; each is sent an equal share of each rank's tokens."""

    def __init__(self, group):
        super().__init__()
        self.group = group
        first = 2 * group.rank()
        self.router = nn.Linear(WIDTH, 2 * group.size())
        self.experts = nn.ModuleDict({str(number): Expert() for number in (first, first + 1)})

    def forward(self, x):
        from torch.distributed.nn.functional import all_to_all_single

        scores = self.router(x).softmax(-1)
        sent = (x * scores.amax(-1, keepdim=True)).contiguous()
        received = all_to_all_single(torch.empty_like(sent), sent, group=self.group)
        parts = received.chunk(len(self.experts))
        done = torch.cat([expert(part) for expert, part in zip(self.experts.values(), parts, strict=True)])
        return x + all_to_all_single(torch.empty_like(done), done, group=self.group)


def shards(model, mesh):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks.values():
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensors(model, mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    for block in model.blocks.values():
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def stages(mesh, interleaved):
    """The parts of the model that this rank runs, and how to train them."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

    ranks, rank = mesh.size(), mesh.get_local_rank()
    numbers = [rank, rank + ranks] if interleaved else [rank]
    count = ranks * len(numbers)
    held = []
    for number in numbers:
        model = Model()
        for name in list(model.blocks):
            if int(name) * count // 4 != number:
                del model.blocks[name]
        if number < count - 1:
            model.head = None
        example = torch.empty(8, WIDTH, device="cuda", requires_grad=number > 0)
        output = torch.empty(8, 64 if number == count - 1 else WIDTH, device="cuda", requires_grad=True)
        model.cuda()
        held.append(PipelineStage(model, number, count, torch.device("cuda"), example, output, group=mesh.get_group()))
    loss = lambda output, target: (output - target).square().mean()  # noqa: E731
    if interleaved:
        return held, ScheduleInterleaved1F1B(held, 4, loss_fn=loss)
    return held, (Schedule1F1B if KIND == "1f1b" else ScheduleGPipe)(held[0], 4, loss_fn=loss)


KIND = sys.argv[1]
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
torch.manual_seed(0)
batch = lambda: torch.randn(32, WIDTH, device="cuda")  # noqa: E731
step = None
if KIND in ("gpipe", "1f1b", "interleaved"):
    mesh = init_device_mesh("cuda", (ranks,), mesh_dim_names=("pp",))
    held, schedule = stages(mesh, KIND == "interleaved")
    model = nn.ModuleList(stage.submod for stage in held)

    def step():
        given = [batch()] if held[0].is_first else []
        wanted = {"target": torch.randn(32, 64, device="cuda")} if held[-1].is_last else {}
        schedule.step(*given, **wanted)
elif KIND == "ep":
    mesh = init_device_mesh("cuda", (ranks,), mesh_dim_names=("ep",))
    model = Experts(mesh.get_group()).cuda()
elif KIND == "tp":
    model = tensors(Model().cuda(), init_device_mesh("cuda", (ranks,), mesh_dim_names=("tp",)))
elif KIND == "fsdp2_tp":
    mesh = init_device_mesh("cuda", (ranks // 2, 2), mesh_dim_names=("dp", "tp"))
    model = shards(tensors(Model().cuda(), mesh["tp"]), mesh["dp"])
elif KIND == "fsdp2":
    model = shards(Model().cuda(), init_device_mesh("cuda", (ranks,), mesh_dim_names=("dp",)))
elif KIND == "hsdp":
    model = shards(Model().cuda(), init_device_mesh("cuda", (ranks // 2, 2), mesh_dim_names=("replicas", "shards")))
elif KIND == "fsdp":
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = FullyShardedDataParallel(
        Model().cuda(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.cuda.current_device()
    )
else:
    views = KIND == "ddp_views"
    model = nn.parallel.DistributedDataParallel(Model().cuda(), device_ids=[torch.cuda.current_device()], gradient_as_bucket_view=views, bucket_cap_mb=2)

optimizer = torch.optim.AdamW(model.parameters(), foreach=KIND != "tp")
if step is None:

    def step():
        model(batch()).sum().backward()


for _ in range(3):
    step()
    optimizer.step()
    optimizer.zero_grad()
step()
print(json.dumps({"rank": rank, "peak": torch.cuda.max_memory_allocated(), "allocated": torch.cuda.memory_allocated()}))
sys.stdout.flush()
torch.cuda.synchronize()
dist.barrier()
dist.destroy_process_group()
