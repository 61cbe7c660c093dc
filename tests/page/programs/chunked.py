"""Runs chunked models on a GPU, with parts of them on the CPU, at several capacities.

chunked.py NAME…: models of the zoo. Each must accept inputs from the CPU and from the GPU, and give outputs like those of
the full model; with --real, also with the right values. Prints the number of capacities that passed.
"""

import argparse
import copy
import json
import sys
from pathlib import Path

import memlab
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

sys.path.insert(0, str(Path(__file__).parents[1]))
from paging.zoo import ZOO, build, call

parser = argparse.ArgumentParser()
parser.add_argument("names", nargs="*")
parser.add_argument("--real", action="store_true")
options = parser.parse_args()
CAPACITIES = 10


def like(result):
    return [(leaf.shape, leaf.dtype, leaf.device.type) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def on_gpu(inputs):
    return tree_map_only(torch.Tensor, lambda tensor: tensor.cuda(), inputs)


done = {}
# ("branches" depends on values, which a simulated card does not compute.)
for name in options.names or [name for name in ZOO if options.real or name != "branches"]:
    torch.manual_seed(0)
    twin = build(name)
    inputs = ZOO[name].inputs()
    weights = sum(one.numel() for one in twin.parameters())
    for part in range(CAPACITIES):
        whole, model = copy.deepcopy(twin), memlab.chunk(copy.deepcopy(twin), "cuda", weights * part // (CAPACITIES - 1))
        for moved in (lambda one: one, lambda one: one, on_gpu):
            expected = call(whole, copy.deepcopy(inputs))
            result = call(model, moved(copy.deepcopy(inputs)))
            assert [form[:2] for form in like(result)] == [form[:2] for form in like(expected)], (name, part)
            for one, other in zip(tree_leaves(result), tree_leaves(expected), strict=True):
                if options.real and isinstance(one, torch.Tensor):
                    torch.testing.assert_close(one.cpu(), other, rtol=5e-3, atol=5e-3)
        done[name] = done.get(name, 0) + 1
print(json.dumps(done))
