"""Without a GPU: compares the pipeline with its recurrence on the host backend with paced copies; measures a unit's cost.

    end_copy(j) = max(end_copy(j-1), slot_free(j)) + bytes/bandwidth        start(j) = max(end(j-1), end_copy(j))

Layers "compute" by waiting, so the machine's speed does not matter as long as it has a core for the copies. On a busy
machine they wait longer than requested, so the recurrence uses the measured waits.
"""

import statistics
import time
from dataclasses import replace

import torch
from torch import nn

LAYERS = 32
BYTES = 1 << 20
# Slow, so that copies need little of the processor: one layer in 8.4 ms.
BYTES_PER_SECOND = 125e6
WANTED_PERCENT = 95
# Delay with which the system wakes up; the rest is spent spinning.
AWAKE = 0.0003
UNITS = 256
WANTED_MICROSECONDS = 20


class Layer(nn.Module):
    """Uses its weight, then waits; records the duration."""

    def __init__(self, size, seconds):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size // 4))
        self.seconds = seconds
        self.taken: list[float] = []

    def forward(self, x):
        start = time.perf_counter()
        x = x + self.weight[:1]
        time.sleep(max(0, self.seconds - AWAKE))
        while time.perf_counter() < start + self.seconds:
            pass
        self.taken.append(time.perf_counter() - start)
        return x


def recurrence(copy, compute, resident, slots):
    """Seconds of a steady-state forward with equal layers. `compute`: seconds per layer; `resident`: resident layers."""
    end = end_copy = before = 0.0
    ends: list[float] = []  # Ends of the layers that pass through a slot.
    for _ in range(8):
        before = end
        for seconds, stays in zip(compute, resident, strict=True):
            ready = 0.0
            if not stays:
                free = ends[-slots] if len(ends) >= slots else 0.0
                end_copy = ready = max(end_copy, free) + copy
            end = max(end, ready) + seconds
            if not stays:
                ends.append(end)
    return end - before


def spread(count, among):
    """Chooses `count` of `among`, evenly spread."""
    return [(number + 1) * count // among > number * count // among for number in range(among)]


def forwards(model, x, count):
    """Seconds of each forward, from the end of the previous one."""
    times, last = [], time.perf_counter()
    for _ in range(count):
        model(x)
        now = time.perf_counter()
        times.append(now - last)
        last = now
    return times


def paced(ratio, residents):
    """One case: (predicted by the recurrence, measured) in seconds per forward."""
    import memlab
    from memlab._paging.settings import Settings
    from memlab.paged_model import page_with

    copy = BYTES / BYTES_PER_SECOND
    model = nn.Sequential(*(Layer(BYTES, copy * ratio) for _ in range(LAYERS))).eval()
    budget = (residents + 2) * BYTES if residents else "min"
    page_with(model, replace(Settings.checked("cpu", BYTES // 4, budget=budget), bytes_per_second=BYTES_PER_SECOND))
    x = torch.zeros(1)
    with torch.no_grad():
        forwards(model, x, 4)
        taken = statistics.median(forwards(model, x, 10))
    compute = [statistics.median(layer.taken[-10:]) for layer in model]
    memlab.unpage(model)
    return recurrence(copy, compute, spread(residents, LAYERS), 2), taken


def overhead(device, budget):
    """Microseconds that paging adds to each of many tiny layers, and the number of units."""
    import memlab

    def make():
        return nn.Sequential(*(nn.Linear(16, 16) for _ in range(UNITS))).eval()

    x = torch.zeros(1, 16, device=device)
    plain, model = make().to(device), memlab.page(make(), device, 16 * 17, budget=budget)
    without: list[float] = []
    paged: list[float] = []
    with torch.no_grad():
        for _ in range(4):
            forwards(plain, x, 5), forwards(model, x, 5)
        for _ in range(20):
            without += forwards(plain, x, 10)
            paged += forwards(model, x, 10)
    units = len(model.memlab.units)
    memlab.unpage(model)
    return units, (statistics.median(paged) - statistics.median(without)) / UNITS * 1e6


def main(device):
    torch.set_num_threads(1)
    print(f"{LAYERS} layers of {BYTES >> 20} MiB, copied at {BYTES_PER_SECOND / 1e6:.0f} MB/s, through two slots:")
    print("  compute/copy  resident  recurrence, ms  memlab, ms  reached")
    for ratio, residents in ((0.25, 0), (0.5, 0), (0.75, 0), (1.0, 0), (1.5, 0), (0.25, 24), (0.5, 16), (0.75, 8)):
        wanted, taken = paced(ratio, residents)
        reached = wanted / taken * 100
        word = "" if reached >= WANTED_PERCENT else f"   less than {WANTED_PERCENT} %"
        print(
            f"  {ratio:<12}  {residents:>2} of {LAYERS}  {wanted * 1e3:14.1f}  {taken * 1e3:10.1f}  {reached:5.1f} %{word}",
            flush=True,
        )
        print(f"= compute/copy {ratio}, {residents} of {LAYERS} resident, reached: {reached:.1f} %")
    print(f"{UNITS} layers of 1 KiB, what paging adds to each on device {device}:")
    for budget, what in (("1GiB", "all resident"), ("min", "through two slots, unpaced")):
        units, cost = overhead(device, budget)
        word = "" if cost <= WANTED_MICROSECONDS else f"   more than {WANTED_MICROSECONDS} µs"
        print(f"  {what}, {units} units: {cost:.1f} µs{word}", flush=True)
        print(f"= a unit, {what}: {cost:.1f} µs")
