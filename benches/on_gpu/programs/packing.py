"""Measures the host time of `memlab.offload_activations` per tensor that autograd saves: `packing.py WIDTH LAYERS TOKENS`.

Prints JSON lines: microseconds in its hook by the fate of the tensor, from the third forward of transformer blocks on, with
budgets that make it copy, recompute and keep. "in_forward": the one call that autograd makes. "directly": more calls with
the same tensor right after it, with warm processor caches. Only the first call requests a copy; "driver" is the driver's
time for the request, and is not in the others.
"""

import json
import statistics
import sys
import time
from collections import defaultdict
from typing import Any

import memlab
import torch
from memlab._activations import copy_streams, offloaded_forward
from offloaded_activations import forward_backward, transformer

LEARNING, FORWARDS, CALLS = 2, 12, 15
# Share of the bytes that autograd saves of one block. The last one keeps everything.
BUDGETS = (1.5, 1000)


class Clock:
    """Calls a function, and records its duration."""

    def __init__(self, function):
        self.function, self.nanoseconds = function, 0

    def __call__(self, *arguments):
        begin = time.perf_counter_ns()
        result = self.function(*arguments)
        self.nanoseconds = time.perf_counter_ns() - begin
        return result


class Taken:
    """The hook's times in nanoseconds, by the fate of a tensor: in forward, directly and of the driver."""

    def __init__(self):
        self.by_fate: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self._hook, self._driver = Clock(offloaded_forward.OffloadedForward.pack), Clock(copy_streams.CopyStream.save)
        own: tuple[tuple[Any, str, Any], ...] = (
            (offloaded_forward.OffloadedForward, "pack", lambda *arguments: self._noted(*arguments)),
            (copy_streams.CopyStream, "save", lambda *arguments: self._driver(*arguments)),
        )
        for owner, name, method in own:
            setattr(owner, name, method)

    def _noted(self, running, tensor):
        self._driver.nanoseconds = 0
        packed = self._hook(running, tensor)
        times = self.by_fate[_fate(packed, tensor)]
        times["in_forward"].append(self._hook.nanoseconds - self._driver.nanoseconds)
        if self._driver.nanoseconds:
            times["driver"].append(self._driver.nanoseconds)
        for _ in range(CALLS):
            again = self._hook(running, tensor)
            times["directly"].append(self._hook.nanoseconds)
            if isinstance(again, offloaded_forward.SavedTensor):  # Backward will not request it.
                again.content.uses -= 1
                again.content.left -= 1
        return packed


def _fate(packed, tensor):
    if isinstance(packed, offloaded_forward.SavedTensor):
        return "copied" if packed.content.copy is not None else "made again"
    if tensor.untyped_storage().nbytes() < offloaded_forward.SMALLEST:
        return "kept, small"
    return "kept, a parameter's" if isinstance(tensor._base, torch.nn.Parameter) else "kept"


def main(width, count, tokens):
    model, x, block = transformer(width, count, tokens)
    taken = Taken()
    for blocks in BUDGETS:
        for step in range(FORWARDS):
            if step == LEARNING:
                taken.by_fate.clear()
            forward_backward(model, x, lambda blocks=blocks: memlab.offload_activations(int(blocks * block)))
        for fate, times in sorted(taken.by_fate.items()):
            microseconds = {f"{what}_us": round(statistics.median(ns) / 1000, 2) for what, ns in times.items()}
            row = {"pack": fate, "budget_blocks": blocks, "tensors": len(times["in_forward"]), **microseconds}
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
