"""Measures the cost of an event after other work has evicted the processor's caches, as PyTorch's does between two events.

    make bench BENCH=cold

calls memlab's hooks from within a model of some depth on the simulated GPU (see cold.c), and prints nanoseconds:

    frames  evicted       node  allocated    freed
        19    0 KiB        117        192       84
"""

import argparse
import ctypes
import os
import sys
import traceback

from torch import nn

KIB = 1 << 10
EVICTED = [0, 256 * KIB, 1024 * KIB, 4096 * KIB]
KINDS = 3


class Leaf(nn.Module):
    def __init__(self, library):
        super().__init__()
        self.library = library

    def forward(self, evicted):
        found = (ctypes.c_double * KINDS)()
        if not self.library.measure(3000 if evicted else 20000, ctypes.c_size_t(evicted), found):
            sys.exit("cold: run me with LD_PRELOAD=libmemlab.so")
        return len(traceback.extract_stack()), list(found)


class Nest(nn.Module):
    def __init__(self, depth, leaf):
        super().__init__()
        self.inner = Nest(depth - 1, leaf) if depth else leaf

    def forward(self, evicted):
        return self.inner(evicted)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="cold.c, compiled")
    parser.add_argument("--depth", type=int, default=4, help="of the model; default 4")
    args = parser.parse_args()
    model = Nest(args.depth, Leaf(ctypes.CDLL(args.library))).cuda()
    model(0)  # Names the layers.
    print("frames  evicted       node  allocated    freed")
    for evicted in EVICTED:
        frames, (node, allocated, freed) = min((model(evicted) for _ in range(3)), key=lambda found: found[1])
        print(f"{frames:6} {evicted // KIB:4} KiB {node:10.0f} {allocated:10.0f} {freed:8.0f}", flush=True)
        for kind, taken in (("node", node), ("allocated", allocated), ("freed", freed)):
            print(f"= {evicted // KIB} KiB read before, {kind}: {taken:.0f} ns", flush=True)
    os._exit(0)  # The blocks that were reported to memlab do not exist.


if __name__ == "__main__":
    main()
