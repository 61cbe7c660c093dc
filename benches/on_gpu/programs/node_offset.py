"""Prints the byte offsets at which every autograd node of this PyTorch has its sequence number.

A Python `grad_fn` is an object head (two words) and then a pointer to the C++ node.
"""

import ctypes
import json

import torch

x = torch.ones(3, requires_grad=True)
for _ in range(1000):  # Makes the numbers large, because small numbers are everywhere in memory.
    x.exp()
nodes = [make(x).grad_fn for _ in range(50) for make in (torch.exp, torch.sin, torch.sum)]
offsets = set(range(0, 96, 8))
for node in nodes:
    address = ctypes.c_void_p.from_address(id(node) + 16).value or 0
    words = (ctypes.c_uint64 * 12).from_address(address)
    offsets &= {8 * index for index, word in enumerate(words) if word == node._sequence_nr()}
print(json.dumps({"torch": torch.__version__, "offsets": sorted(offsets)}))
