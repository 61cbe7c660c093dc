"""One rank of parallel training: `parallel_ranks.py KIND`, started by torchrun with a card for each rank.

Prints PyTorch's figures of this rank as one line of JSON, or `{"missing": …}` if PyTorch is too old for the kind.
"""

import json
import math
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 256
CLASSES = 63  # Odd, so that the shards of the head are padded.
MICRO_BATCH = 8


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
        self.head = nn.Linear(WIDTH, CLASSES)

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
    """A mixture of experts. Each rank holds two and receives an equal share of each rank's tokens."""

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


def rounded(size):
    return -(-size // 512) * 512


# Bytes by FSDP's rules: a rank's shards, the parameters gathered from all ranks, and each part's gradients before their
# reduction.
EXPECTED = {"shards": 0, "gathered": 0, "reduce_scatter": []}


def shards(model, mesh):
    from torch.distributed.fsdp import fully_shard

    ranks = mesh.size(mesh.ndim - 1)
    for part in (*model.blocks.values(), model.head):
        shapes = [local(parameter).shape for parameter in part.parameters()]
        # Padding gives all ranks the same number of rows.
        whole = [math.ceil(rows / ranks) * ranks * math.prod(rest) * 4 for rows, *rest in shapes]
        EXPECTED["gathered"] += sum(map(rounded, whole))
        EXPECTED["shards"] += sum(rounded(size // ranks) for size in whole)
        EXPECTED["reduce_scatter"].append(sum(whole))
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensors(model, mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    for block in model.blocks.values():
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def stages(mesh, interleaved):
    """The parts of the model that this rank runs, and their pipeline schedule."""
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
        example = torch.empty(MICRO_BATCH, WIDTH, device="cuda", requires_grad=number > 0)
        output = torch.empty(MICRO_BATCH, CLASSES if number == count - 1 else WIDTH, device="cuda", requires_grad=True)
        model.cuda()
        held.append(PipelineStage(model, number, count, torch.device("cuda"), example, output, group=mesh.get_group()))

    def loss(output, target):
        return (output - target).square().mean()

    if interleaved:
        return held, ScheduleInterleaved1F1B(held, 4, loss_fn=loss)
    return held, (Schedule1F1B if KIND == "1f1b" else ScheduleGPipe)(held[0], 4, loss_fn=loss)


KIND = sys.argv[1]
MESHES = []
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def batch():
    return torch.randn(32, WIDTH, device="cuda")


def mesh_of(*sizes, names):
    from torch.distributed.device_mesh import init_device_mesh

    MESHES.append(init_device_mesh("cuda", sizes, mesh_dim_names=names))
    return MESHES[-1]


def built():
    """The models of this rank, and a function for one forward and backward."""
    if KIND in ("gpipe", "1f1b", "interleaved"):
        held, schedule = stages(mesh_of(RANKS, names=("pp",)), KIND == "interleaved")

        def step():
            given = [batch()] if held[0].is_first else []
            wanted = {"target": torch.randn(32, CLASSES, device="cuda")} if held[-1].is_last else {}
            schedule.step(*given, **wanted)

        return [stage.submod for stage in held], step
    if KIND == "ep":
        model = Experts(mesh_of(RANKS, names=("ep",)).get_group()).cuda()
    elif KIND == "tp":
        model = tensors(Model().cuda(), mesh_of(RANKS, names=("tp",)))
    elif KIND == "fsdp2_tp":
        mesh = mesh_of(RANKS // 2, 2, names=("dp", "tp"))
        model = shards(tensors(Model().cuda(), mesh["tp"]), mesh["dp"])
    elif KIND == "fsdp2":
        model = shards(Model().cuda(), mesh_of(RANKS, names=("dp",)))
    elif KIND == "hsdp":
        model = shards(Model().cuda(), mesh_of(RANKS // 2, 2, names=("replicas", "shards")))
    else:
        views = KIND == "ddp_views"
        model = nn.parallel.DistributedDataParallel(Model().cuda(), gradient_as_bucket_view=views, bucket_cap_mb=2)
    return [model], lambda: model(batch()).sum().backward()


def local(tensor):
    return getattr(tensor, "_local_tensor", tensor)


def sharding(tensor):
    """Formats a DTensor's sharding as memlab does."""
    placements = getattr(tensor, "placements", ())
    names = tensor.device_mesh.mesh_dim_names if placements else ()
    said = [
        f"Shard({placement.dim})/{tensor.device_mesh.size(number)} on {name}"
        for number, (placement, name) in enumerate(zip(placements, names, strict=True))
        if not placement.is_replicate()
    ]
    return ", ".join(said or [f"Replicate on {name}" for name in names]) or None


def told(named, optimizer):
    """[category, name, bytes, sharding] of all tensors that training keeps for these parameters."""
    found = []
    for name, parameter in named:
        kept = [("parameter", name, parameter), ("gradient", name, parameter.grad)]
        kept += [("optimizer_state", f"{name}:{key}", value) for key, value in optimizer.state[parameter].items()]
        found += [(kind, name, local(one).numel() * 4, sharding(one)) for kind, name, one in kept if local(one).is_cuda]
    return found


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    try:
        models, step = built()
    except ImportError as error:
        print(json.dumps({"missing": str(error)}) + "\n", end="", flush=True)
        return None
    named = [pair for model in models for pair in model.named_parameters()]
    optimizer = torch.optim.AdamW([parameter for _, parameter in named], foreach=KIND != "tp")
    for _ in range(3):
        optimizer.zero_grad()
        step()
        optimizer.step()
    tensors = told(named, optimizer)
    buckets = []
    if KIND.startswith("ddp"):
        buckets = [int(size) for size in models[0]._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(",")]
    if EXPECTED["gathered"]:
        # FSDP gathers the parameters, and modules hold the full ones when the optimizer steps and the program ends.
        for part in (models[0], *models[0].blocks.values()):
            part.unshard()
        optimizer.step()
    sums = [float(local(parameter).detach().float().sum()) for _, parameter in named]
    dist.barrier()
    torch.cuda.synchronize()
    dist.destroy_process_group()
    counts = torch.cuda.memory_stats()
    result = {
        "rank": RANK,
        "torch": torch.__version__,
        "allocated": torch.cuda.memory_allocated(),
        "peak": torch.cuda.max_memory_allocated(),
        "allocations": counts["allocation.all.allocated"],
        "allocated_bytes": counts["allocated_bytes.all.allocated"],
        "sums": sums,
        "tensors": tensors,
        "buckets": buckets,
        **EXPECTED,
    }
    sys.stdout.write(json.dumps(result) + "\n")
    return models, optimizer, step


KEPT = main()  # Until the program ends, the moment that tests compare.
