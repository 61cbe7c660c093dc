"""Distributed training for `memlab plan`: `planned_ranks.py KIND --batch N`, started by torchrun or a similar launcher.

Rank 0 prints PyTorch's own peaks at the end, as JSON.
"""

import argparse
import json
import os

import torch
import torch.distributed as dist
import torch.multiprocessing
from planned import GPT, tokens
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


def wrapped(kind, model, device):
    if kind == "fsdp2":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model.blocks:
            fully_shard(block, mp_policy=policy)
        return fully_shard(model, mp_policy=policy)
    if kind == "fsdp":
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        policy = ModuleWrapPolicy({type(model.blocks[0])})
        return FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=device, use_orig_params=True)
    views = kind == "ddp-views"
    return DistributedDataParallel(model, device_ids=[device], gradient_as_bucket_view=views)


def save(model, optimizer, options):
    import torch.distributed.checkpoint as checkpoints
    from torch.distributed.checkpoint.state_dict import get_state_dict

    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    saved = (checkpoints.async_save if options.saving == "async" else checkpoints.save)(
        state, checkpoint_id=options.checkpoint
    )
    if options.saving == "async":
        saved.result()


@torch.no_grad()
def evaluate(model, batch):
    """All ranks evaluate, and share their losses."""
    model.eval()
    total = torch.zeros((), device="cuda")
    for _ in DataLoader(range(5)):
        total += model(tokens(batch))
    dist.all_reduce(total)
    model.train()


def train(options):
    kind, batch, steps = options.kind, options.batch, options.steps
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    dist.init_process_group("gloo" if kind == "ddp-gloo" else "cpu:gloo,cuda:nccl" if options.saving else "nccl")
    model = wrapped(kind, GPT().cuda(), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(options.epochs):
        for _ in DataLoader(range(steps)):
            loss = model(tokens(batch))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if options.evaluated:
            evaluate(model, options.evaluated * batch)
    if options.saving:
        save(model, optimizer, options)
    if dist.get_rank() == 0:
        print(json.dumps([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]))
    dist.destroy_process_group()


def spawned(rank, ranks, port, options):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    # Like torchrun: the parent hosts the store, also for rank 0.
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    train(options)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--evaluated", type=int, default=0, help="the batch of the evaluation, in those of the training")
    parser.add_argument("--saving", choices=["distributed", "async"])
    parser.add_argument("--checkpoint")
    parser.add_argument("--spawn", action="store_true")
    options = parser.parse_args()
    if options.spawn:
        ranks = torch.cuda.device_count()
        store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # On a free port.
        torch.multiprocessing.spawn(spawned, (ranks, store.port, options), nprocs=ranks)
    else:
        train(options)


if __name__ == "__main__":
    main()
