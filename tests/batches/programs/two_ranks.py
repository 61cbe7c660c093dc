"""Two ranks on the CPU that rendezvous through a file, and their models and losses in float64."""

import atexit
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch.nn import functional

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
IMAGES, LABELS = torch.randn(21, 6), torch.randint(0, 4, (21,))
LABELS[:7] = -100
# The ranks have different numbers of samples and of targets.
SHARES = [slice(0, 13), slice(13, 21)]


def contrastive(outputs):
    return functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


def by_samples(model):
    """Mean over the targets of all ranks, as if they were one batch."""
    return functional.cross_entropy(model(IMAGES), LABELS)


def by_ranks(model):
    """Mean of the ranks' losses."""
    return sum(contrastive(model(IMAGES[share])) for share in SHARES) / 2


# Longer than any machine needs, so that only a hang fails.
HANG_SECONDS = 600


def done_files(file):
    """One file for each rank, created when the rank ends."""
    return [pathlib.Path(f"{file}.done{number}") for number in range(2)]


def begin(file, rank):
    atexit.register(done_files(file)[rank].touch)  # Also for a rank that fails: otherwise the other waits in `end`.
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)


def end(file, rank):
    """Waits for the other rank: gloo reports a closed connection as a failure, even after the last message.

    Skips the interpreter's shutdown, in which a PyTorch autograd thread can abort the process (see
    simgpu/runtime/src/thread_exit.rs).
    """
    done = done_files(file)
    done[rank].touch()
    give_up = time.monotonic() + HANG_SECONDS
    while not all(one.exists() for one in done) and time.monotonic() < give_up:
        time.sleep(0.01)
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)
