"""Trains with a budget for activations: `offloaded_activations.py BUDGET --layers N…`; BUDGET `none` disables it. Prints for
each model the peak allocation of a step after the first three, the allocation at the end of its forward, both minus the
allocation before the step, and the bytes of one activation.

A simulated card runs at the host's speed. Therefore operations take the given nanoseconds, and copies run at the 20 GB/s of
a bus."""

import argparse
import contextlib
import json

import memlab
import torch
from memlab._activations.copy_streams import CopyStream
from memlab._activations.forward_profile import ForwardProfile
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("budget")
parser.add_argument("--layers", type=int, nargs="+")
parser.add_argument("--copies-only", action="store_true")
parser.add_argument("--operation-ns", type=int, default=1000)
arguments = parser.parse_args()
ForwardProfile._nanoseconds = lambda profile, operation: arguments.operation_ns
CopyStream.bytes_per_second = lambda copy_stream: 20e9

WIDTH, BATCH = 1024, 2048


def around():
    if arguments.budget == "none":
        return contextlib.nullcontext()
    return memlab.offload_activations(arguments.budget, recompute=not arguments.copies_only)


def layer():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH))


def training(layers):
    model = nn.Sequential(*(layer() for _ in range(layers))).cuda()
    x = torch.randn(BATCH, WIDTH, device="cuda")
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(5):
        model.zero_grad(set_to_none=False)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with around():
            loss = model(x).square().mean()
        held = torch.cuda.memory_allocated() - before
        loss.backward()
        del loss
        peak = torch.cuda.max_memory_allocated() - before
    return peak, held, 4 * WIDTH * BATCH


print(json.dumps([training(layers) for layers in arguments.layers]))
