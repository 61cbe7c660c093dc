"""A rank of a job that pages a model, first with private weights and then with weights that the ranks share.

    torchrun --nproc-per-node 2 shared_ranks.py [--real] [--layers 24] [--width 512]

Rank 0 prints one JSON line per way, with each rank's figures. Each rank has its own device while enough exist. With --real,
results are compared with those of the unpaged model; the simulated GPU's kernels do nothing. PYTHONPATH=python finds the
package.
"""

import argparse
import functools
import json
import os
import time

import memlab
import torch
import torch.distributed as dist
from memlab._paging.device_pool import DevicePool
from torch import nn

compared = 0  # Bytes.
compares = True


def check_acquired_units():
    """Compares the bytes of each unit on the device with those of the model at each use."""
    make = DevicePool.__init__

    def check(pool, index):
        global compared
        for paged in pool.placed[index].tensors if compares else ():
            assert torch.equal(paged.on_device.cpu(), paged.tensor.detach()), paged.name
            compared += paged.tensor.nbytes

    def make_observed(self, *args):
        make(self, *args)
        self.placed_units.observe(functools.partial(check, self))

    DevicePool.__init__ = make_observed


def pages_of_arenas(model):
    """Host bytes of the weights; pages that several processes map are divided among them."""
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    total, counts = 0, False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            first, *rest = line.split()
            if not first.endswith(":"):
                start, end = (int(part, 16) for part in first.split("-"))
                # (The system places mappings at random: others may lie between those of the weights.)
                counts = "memlab-weights" in line or any(start <= address < end for address in addresses)
            elif counts and first == "Pss:":
                total += int(rest[0]) << 10
    return total


class Model(nn.Module):
    """Layers, and a table of which few rows are read."""

    def __init__(self, width, layers):
        super().__init__()
        self.table = nn.Embedding(16 * width, width)
        self.layers = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))

    def forward(self, tokens):
        return self.layers(self.table(tokens))


def run(shared, arguments, device):
    global compared, compares
    compared, compares = 0, True
    torch.manual_seed(0)
    model = Model(arguments.width, arguments.layers).eval().requires_grad_(False)
    nbytes = sum(parameter.nbytes for parameter in model.parameters())
    tokens = torch.arange(8, device=device)
    expected = None
    if arguments.real:
        expected = model.to(device)(tokens)
        model.to("cpu")
    start = time.perf_counter()
    model = memlab.page(model, device, budget="min", shared=shared)
    paged_s = time.perf_counter() - start
    dist.barrier()  # All ranks have freed their private weights.
    with torch.no_grad():
        results = [model(tokens) for _ in range(4)]
    found = {"rank": dist.get_rank(), "device": str(device), "weights": nbytes, "host": pages_of_arenas(model)}
    found |= {"compared": compared, "paged_s": round(paged_s, 3), "sharing": model.memlab.sharing}
    found["equal"] = expected is None or all(torch.equal(result, expected) for result in results)
    compares = False  # The following forwards are timed.
    dist.barrier()
    with torch.no_grad():
        for _ in range(arguments.forwards):
            model(tokens)
    plan = model.memlab
    found |= {"pinned": plan.pinned, "gathered": plan.gathered_bytes, "notes": plan.notes, "stage": plan.stage}
    found |= {"gigabytes_per_second": round(plan.gigabytes_per_second, 2), "bus": round(plan.bytes_per_second / 1e9, 2)}
    dist.barrier()
    memlab.unpage(model)
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, found)
    if dist.get_rank() == 0:
        print(json.dumps({"shared": shared, "ranks": everyone}), flush=True)
    dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--forwards", type=int, default=2)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local % torch.cuda.device_count())
    torch.cuda.set_device(device)
    check_acquired_units()
    for shared in (None, f"host:{os.environ['MASTER_PORT']}"):
        run(shared, arguments, device)
    dist.destroy_process_group()


main()
