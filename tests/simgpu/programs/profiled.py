"""Runs a training step and a replayed graph under torch.profiler, and lists the simulated driver's kernels of the same step.

    profiled.py TRACE GRAPH_TRACE

Writes both traces, and prints the names of the kernels that the driver launched in the previous step.
"""

import ctypes
import json
import sys

import torch
from torch.profiler import ProfilerActivity, profile


class Submitted(ctypes.Structure):
    """The beginning of `Submitted` (simgpu/observer/src/task.rs): the kind of task, and a kernel's name."""

    _fields_ = (("task", ctypes.c_uint32), ("name", ctypes.c_char_p))


ENTERED = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t)
LEFT = ctypes.CFUNCTYPE(None, ctypes.c_int)
SUBMITTED = ctypes.CFUNCTYPE(None, ctypes.POINTER(Submitted))


class Observer(ctypes.Structure):
    _fields_ = (("entered", ENTERED), ("left", LEFT), ("submitted", SUBMITTED))


def launched_by(work):
    """Names of the kernels that the driver launches, demangled like the profiler's."""
    names = []

    def submitted(work):
        if work.contents.task == 0:
            names.append(work.contents.name)

    observer = Observer(ENTERED(lambda *_: None), LEFT(lambda _: None), SUBMITTED(submitted))
    observe = ctypes.CDLL("libcuda.so.1").simgpu_observe_driver
    observe(ctypes.byref(observer))
    work()
    observe(None)
    demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    demangle.restype = ctypes.c_char_p
    return [(demangle(name, None, None, None) or name).decode() for name in names]


def profiled(work, trace):
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(trace)


model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 30 * 30, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
target = torch.zeros(16, dtype=torch.long, device="cuda")
pinned = torch.zeros(256, pin_memory=True)
side = torch.cuda.Stream()


def step():
    images = torch.zeros(16, 3, 32, 32).cuda()
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(images), target).backward()
    optimizer.step()
    with torch.cuda.stream(side):
        copied = torch.empty(256, device="cuda").zero_()
        pinned.copy_(copied, non_blocking=True)
        copied.clone()


step()
launched = launched_by(step)
profiled(step, sys.argv[1])

with torch.no_grad():
    images = torch.zeros(16, 3, 32, 32, device="cuda")
    captured = launched_by(lambda: model(images))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(images)
profiled(lambda: (graph.replay(), graph.replay()), sys.argv[2])
print(json.dumps({"step": launched, "captured": captured}))
