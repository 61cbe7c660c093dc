"""Two ranks on the CPU that meet in a file."""

import pathlib
import time

import torch.distributed as dist


def begin(file, rank):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)


def end(file, rank):
    """Waits for the other: gloo takes a connection that closes for a failure, also if all was said."""
    done = [pathlib.Path(f"{file}.done{number}") for number in range(2)]
    done[rank].touch()
    given_up = time.monotonic() + 60  # It has failed, and says so.
    while not all(one.exists() for one in done) and time.monotonic() < given_up:
        time.sleep(0.01)
    dist.destroy_process_group()
