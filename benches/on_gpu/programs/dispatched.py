"""A model over two GPUs with memlab.page and with accelerate's dispatch_model, at equal memory for weights.

    dispatched.py [--real] [--width 8192] [--layers 48] [--tokens 1024] [--share 0.25]

`--share` is the part of the weights that each GPU has room for; the rest waits in host memory. Prints one JSON line for each
way: milliseconds of a forward (the median of several), peak memory of each GPU's weights and activations, and whether
results equal those of the unpaged model. Without accelerate, its line is left out.
"""

import argparse
import copy
import gc
import json
import statistics
import time

import memlab
import torch
from torch import nn

try:
    from accelerate import dispatch_model, infer_auto_device_map
except ImportError:
    dispatch_model = infer_auto_device_map = None

DEVICES = ["cuda:0", "cuda:1"]


class Block(nn.Module):
    """A block that no device map may divide."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + self.linear(x).relu()


def weights(arguments):
    torch.manual_seed(0)
    kind = torch.bfloat16 if arguments.real else torch.float32
    model = nn.Sequential(*(Block(arguments.width) for _ in range(arguments.layers))).to(kind)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.1)
    return model.eval().requires_grad_(False)


def synchronize():
    for device in DEVICES:
        torch.cuda.synchronize(device)


def measured(way, forward, x, expected, arguments):
    """Measures one line: the first forwards prepare, the later ones are timed."""
    for _ in range(4):
        result = forward(x)
    equal = torch.equal(result.to(expected.device), expected)
    for device in DEVICES:
        torch.cuda.reset_peak_memory_stats(device)
    times = []
    for _ in range(arguments.forwards):
        synchronize()
        began = time.perf_counter()
        forward(x)
        synchronize()
        times.append((time.perf_counter() - began) * 1e3)
    peaks = [torch.cuda.max_memory_allocated(device) for device in DEVICES]
    found = {"way": way, "ms": round(statistics.median(times), 3), "peaks": peaks, "equal": equal or not arguments.real}
    return found | {"share": arguments.share, "tokens": arguments.tokens}


def paged(model, budget):
    model = memlab.page(copy.deepcopy(model), DEVICES, budget=budget)
    return model, lambda: {"plan": [part.device_bytes for part in model.memlab.devices], "stage": model.memlab.stage}


def dispatched(model, budget):
    most = {0: budget, 1: budget, "cpu": "1000GB"}
    model = copy.deepcopy(model)
    places = infer_auto_device_map(model, most, no_split_module_classes=["Block"])
    model = dispatch_model(model, places, main_device=0, force_hooks=True)
    return model, lambda: {"plan": [sum(place == device for place in places.values()) for device in (0, 1, "cpu")]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--share", type=float, default=0.25)
    parser.add_argument("--forwards", type=int, default=5)
    arguments = parser.parse_args()
    model = weights(arguments)
    x = torch.randn(arguments.tokens, arguments.width, device="cuda", dtype=next(model.parameters()).dtype)
    expected = x
    with torch.inference_mode():
        for block in model:  # One block after the other: all of them need not fit.
            expected = copy.deepcopy(block).cuda()(expected)
    budget = int(sum(parameter.nbytes for parameter in model.parameters()) * arguments.share)
    ways = {"memlab.page": paged} | ({"dispatch_model": dispatched} if dispatch_model else {})
    for way, start in ways.items():
        forward, facts = start(model, budget)
        with torch.inference_mode():
            found = measured(way, forward, x, expected, arguments)
        print(json.dumps(found | facts()), flush=True)
        forward = facts = None
        gc.collect()
        torch.cuda.empty_cache()


main()
