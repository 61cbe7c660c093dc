"""A small training run, recorded in different ways.

    timed.py CASE [OUT.json]

short, plain, long, graphed, threads, forked, two_devices: train in that way. profiled: trains under torch.profiler, and
writes the profiled kernels to OUT as [[name, calls, microseconds]]. interrupted: steps, then steps under torch.profiler,
then steps until memlab records again. killed, _exit, quick_exit: end in that way, after as many steps as plain.
"""

import ctypes
import json
import os
import sys
import threading
import time
from collections import Counter

import torch
import torch.nn as nn
from torch.profiler import ProfilerActivity, profile


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.up = nn.Linear(64, 64)

    def forward(self, x):
        return x + torch.tanh(self.up(self.norm(x)))


case, *out = sys.argv[1:]
torch.manual_seed(0)
model = nn.Sequential(Block(), Block()).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
inputs = torch.ones(32, 64, device="cuda")


def step():
    optimizer.zero_grad()
    model(inputs).sum().backward()
    optimizer.step()


def steps(count=3):
    for _ in range(count):
        step()
    torch.cuda.synchronize()


def profiled():
    with profile(activities=[ProfilerActivity.CUDA]) as done:
        steps()
    calls, times = Counter(), Counter()
    for event in done.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            calls[event.name] += 1
            times[event.name] += event.device_time
    return [[name, calls[name], times[name]] for name in calls]


def recorded():
    """Number of sums that memlab has written."""
    with open(os.environ["TRACE"], "rb") as trace:
        return trace.read().count(b'["work",')


def until_recorded(seen):
    """Runs steps until memlab has written more sums than that."""
    deadline = time.monotonic() + 600
    while recorded() <= seen:
        assert time.monotonic() < deadline, "memlab records no sums"
        steps()
        time.sleep(0.05)


steps()
if case in ("plain", "_exit", "quick_exit"):
    steps()
elif case == "long":
    steps(21)
elif case == "graphed":
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(inputs).sum()
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
elif case == "threads":
    models = [nn.Linear(64, 64 + index).cuda() for index in range(4)]

    def work(model):
        for _ in range(50):
            model(inputs).sum().backward()

    workers = [threading.Thread(target=work, args=(model,)) for model in models]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    torch.cuda.synchronize()
elif case == "forked":
    child = os.fork()
    if child == 0:
        os._exit(0)  # CUDA does not work in a forked child.
    assert os.waitpid(child, 0)[1] == 0
    steps()
elif case == "two_devices":
    second = nn.Sequential(Block(), Block()).to("cuda:1")
    for _ in range(5):
        second(inputs.to("cuda:1")).sum().backward()
    torch.cuda.synchronize(1)
elif case == "profiled":
    with open(out[0], "w") as file:
        json.dump(profiled(), file)
elif case == "interrupted":
    until_recorded(0)
    seen = profiled()
    until_recorded(recorded())
    with open(out[0], "w") as file:
        json.dump(seen, file)
elif case == "killed":
    until_recorded(0)
    os.kill(os.getpid(), 9)
if case == "_exit":
    os._exit(0)
if case == "quick_exit":
    ctypes.CDLL(None).quick_exit(0)
