"""Continues after an interrupt, like Ctrl-C in a notebook, that arrives while memlab's agent walks its model.

    interrupted_once.py MOMENT

MOMENT: naming or tagging. Ends with os._exit, so that the agent does not run again at the end.
"""

import os
import pathlib
import signal
import sys
import time
import weakref

import torch
import torch.nn as nn

moment = sys.argv[1]
signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell starts background jobs with SIGINT ignored.
interrupted = left = 0


def agent_runs():
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_filename != "<memlab agent>":
        frame = frame.f_back
    return frame is not None


def interrupting(function, calls):
    """Wraps the function so that its n-th call interrupts the agent."""

    def call(*arguments):
        global left
        if agent_runs():
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGINT)
        return function(*arguments)

    global left
    left = calls
    return call


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        return self.head(self.body(x))


if moment == "naming":
    weakref.ref = interrupting(weakref.ref, 3)
else:
    torch._C.DisableTorchFunction = interrupting(torch._C.DisableTorchFunction, 1)
model = Model().cuda()
x = torch.ones(4, 8, device="cuda")
end = time.monotonic() + 600  # A busy machine may run the agent late.


def is_complete():
    """Returns true once the trace has the last layer and the last parameter."""
    traces = [path.read_bytes() for path in pathlib.Path().glob("*.jsonl")]
    return any(b'"head"' in trace and b'"head.bias"' in trace for trace in traces)


while time.monotonic() < end and not (interrupted and is_complete()):
    try:
        kept = model(x)
        for _ in range(1000):  # The agent runs between two bytecodes.
            pass
    except KeyboardInterrupt:
        interrupted += 1
print("interrupted", interrupted, flush=True)
os._exit(0)
