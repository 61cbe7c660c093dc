"""Prints cuDNN's workspace for each convolution: one line of JSON per shape, data type and direction.

Run it on a GPU, and on the simulated card with the same PyTorch; then compare:

    python benches/workspaces.py --kernels > card.jsonl
    memlab simulate --card h100 -- python benches/workspaces.py > simulated.jsonl
    python benches/workspaces.py --compare card.jsonl simulated.jsonl

It stops after 50 seconds (--seconds). The most important shapes come first.
"""

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
# Images (count, channels, sizes), filters (outputs, lengths), then deviations from stride 1, no padding, channels
# first.
SHAPES: list[tuple[list[int], list[int], dict[str, Any]]] = [
    # Filters of 1x1x1: the last layer of a segmentation, with few outputs, then channels that are multiples of 8.
    ([6, 16, 64, 64, 64], [3, 1, 1, 1], {}),
    ([2, 16, 32, 32, 32], [3, 1, 1, 1], {}),
    ([2, 16, 32, 32, 32], [8, 1, 1, 1], {}),
    ([2, 16, 32, 32, 32], [16, 1, 1, 1], {}),
    ([2, 16, 32, 32, 32], [1, 1, 1, 1], {}),
    ([2, 32, 32, 32, 32], [64, 1, 1, 1], {}),
    ([4, 64, 16, 16, 16], [32, 1, 1, 1], {}),
    ([1, 16, 32, 32, 32], [3, 1, 1, 1], {}),
    ([1, 64, 16, 16, 16], [64, 1, 1, 1], {}),
    ([2, 128, 8, 8, 8], [256, 1, 1, 1], {}),
    ([2, 17, 31, 31, 31], [5, 1, 1, 1], {}),
    ([6, 16, 64, 64, 64], [3, 1, 1, 1], {"last": True}),
    ([2, 32, 32, 32, 32], [64, 1, 1, 1], {"last": True}),
    ([2, 32, 32, 32, 32], [64, 1, 1, 1], {"stride": 2}),
    # The same in two dimensions.
    ([6, 16, 256, 256], [3, 1, 1], {}),
    ([2, 16, 512, 512], [3, 1, 1], {}),
    ([2, 16, 128, 128], [8, 1, 1], {}),
    ([2, 16, 128, 128], [1, 1, 1], {}),
    ([4, 64, 56, 56], [256, 1, 1], {}),
    ([32, 128, 28, 28], [512, 1, 1], {}),
    ([1, 64, 56, 56], [64, 1, 1], {}),
    ([2, 17, 31, 31], [5, 1, 1], {}),
    ([4, 256, 56, 56], [512, 1, 1], {"stride": 2}),
    ([6, 16, 256, 256], [3, 1, 1], {"last": True}),
    # The other layers of a 3D U-Net.
    ([6, 1, 64, 64, 64], [16, 3, 3, 3], {"padding": 1}),
    ([6, 16, 32, 32, 32], [32, 3, 3, 3], {"padding": 1}),
    ([6, 32, 16, 16, 16], [64, 3, 3, 3], {"padding": 1}),
    ([6, 64, 32, 32, 32], [32, 3, 3, 3], {"padding": 1}),
    ([6, 32, 64, 64, 64], [16, 3, 3, 3], {"padding": 1}),
    ([6, 64, 16, 16, 16], [32, 2, 2, 2], {"stride": 2, "transposed": True}),
    ([6, 32, 32, 32, 32], [16, 2, 2, 2], {"stride": 2, "transposed": True}),
    # Further shapes.
    ([2, 64, 16, 16, 16], [32, 4, 4, 4], {"stride": 2, "padding": 1, "transposed": True}),
    ([2, 64, 16, 16, 16], [64, 3, 3, 3], {"padding": 1, "transposed": True}),
    ([2, 16, 16, 16, 16], [3, 1, 1, 1], {"transposed": True}),
    ([2, 64, 32, 32, 32], [64, 3, 3, 3], {"stride": 2, "padding": 1}),
    ([2, 128, 16, 16, 16], [128, 3, 3, 3], {"padding": 1}),
    ([1, 3, 16, 112, 112], [32, 3, 3, 3], {"padding": 1}),
    ([1, 5, 33, 33, 33], [7, 3, 3, 3], {}),
    ([2, 16, 24, 24, 24], [16, 3, 3, 3], {"padding": 2, "dilation": 2}),
    ([2, 64, 8, 28, 28], [64, 1, 3, 3], {}),
    ([2, 64, 8, 28, 28], [64, 3, 1, 1], {}),
    ([2, 32, 32, 32, 32], [32, 3, 3, 3], {"padding": 1, "last": True}),
    ([2, 32, 16, 16, 16], [32, 5, 5, 5], {"padding": 2}),
]
TYPES = [torch.float16, torch.bfloat16, torch.float32]


def temporary(call):
    """Temporary bytes of a call besides its results, at its first run and at the second, and those results."""
    taken = []
    for _ in range(2):
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        torch.cuda.reset_peak_memory_stats()
        result = call()
        stats = torch.cuda.memory_stats()
        taken.append(stats["requested_bytes.all.peak"] - max(before, stats["requested_bytes.all.current"]))
        del result
    return taken


def kernels(call):
    """Shortened names of the kernels that a call runs."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    on_card = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return [event.name[:100] for event in on_card]


def directions(images, filters, kind, last=False, stride=1, padding=0, dilation=1, transposed=False):
    """Calls for result, gradient of the images and gradient of the filters, which allocate nothing else."""
    spatial = len(images) - 2
    outputs, *lengths = filters
    inputs = images[1]
    layout = CHANNELS_LAST[len(images)] if last else torch.contiguous_format
    x = torch.zeros(images, device="cuda", dtype=kind).to(memory_format=layout)
    w = torch.zeros([*([inputs, outputs] if transposed else [outputs, inputs]), *lengths], device="cuda", dtype=kind)
    w = w.to(memory_format=layout)
    form = ([stride] * spatial, [padding] * spatial, [dilation] * spatial, transposed, [0] * spatial, 1)
    y = torch.convolution(x, w, None, *form)

    def backward(*wanted):
        return torch.ops.aten.convolution_backward(y, x, w, None, *form, [*wanted, False])

    return {
        "forward": lambda: torch.convolution(x, w, None, *form),
        "images": lambda: backward(True, False),
        "filters": lambda: backward(False, True),
    }


def measure(seconds, with_kernels):
    end = time.monotonic() + seconds
    device = torch.cuda.get_device_name()
    print(json.dumps({"torch": torch.__version__, "cudnn": torch.backends.cudnn.version(), "device": device}), flush=True)
    with torch.no_grad():
        for (images, filters, form), kind in itertools.product(SHAPES, TYPES):
            if time.monotonic() > end:
                sys.exit("stopped: the time is over")
            line: dict[str, Any] = {"images": images, "filters": filters, **form, "type": str(kind).removeprefix("torch.")}
            try:
                for direction, call in directions(images, filters, kind, **form).items():
                    first, then = temporary(call)
                    names = {"kernels": kernels(call)} if with_kernels else {}
                    print(json.dumps({**line, "direction": direction, "first": first, "bytes": then, **names}), flush=True)
            except RuntimeError as error:
                print(json.dumps({**line, "error": str(error)[:200]}), flush=True)


def read(path):
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    named = {}
    for line in lines[1:]:
        results = {key: line.pop(key, None) for key in ("first", "bytes", "kernels", "error")}
        named[json.dumps(line, sort_keys=True)] = results
    return named


def compare(card, simulated):
    card, simulated = read(card), read(simulated)
    both = [name for name in card if name in simulated]
    differ = [name for name in both if card[name]["bytes"] != simulated[name]["bytes"]]
    for name in differ:
        there, here = card[name], simulated[name]
        print(name, "card", there["bytes"], "simulated", here["bytes"], *(there["kernels"] or []), sep="  ")
    print(f"{len(both) - len(differ)} of {len(both)} are equal")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=50)
    parser.add_argument("--kernels", action="store_true", help="also print the kernels' names")
    parser.add_argument("--compare", nargs=2, metavar=("CARD", "SIMULATED"))
    arguments = parser.parse_args()
    if arguments.compare:
        compare(*arguments.compare)
    else:
        measure(arguments.seconds, arguments.kernels)
