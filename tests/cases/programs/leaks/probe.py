"""Asks what holds the memory, and compares with what a release frees."""

import json

import memlab
import torch

asked = {}


def before(name, at=None):
    """Notes what memlab promises for the holder of this name or kind; `at`: among the memory of a line."""
    found = memlab.holders(at)
    holder = next(holder for holder in found if name in holder.names or name == holder.kind)
    asked.update(promised=holder.releases, allocated=torch.cuda.memory_allocated(), cure=holder.cure)


def after():
    """Prints the promise and the bytes that PyTorch freed since."""
    freed = asked.pop("allocated") - torch.cuda.memory_allocated()
    print("PROBE", json.dumps({**asked, "freed": freed}), flush=True)
