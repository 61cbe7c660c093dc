"""A program that is interrupted, as by Ctrl-C in a notebook, while memlab's agent looks at its model, and goes on with it.

    interrupted_once.py MOMENT

MOMENT: naming or tagging. Ends with os._exit, so that the agent has no last word.
"""

import os
import signal
import sys

import torch
import torch.nn as nn

moment = sys.argv[1]
interrupted = 0


def agent_runs():
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_filename != "<memlab agent>":
        frame = frame.f_back
    return frame is not None


def interrupting(of, things):
    for index, thing in enumerate(things):
        if moment == of and index == 2 and not interrupted and agent_runs():
            signal.raise_signal(signal.SIGINT)
        yield thing


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        return self.head(self.body(x))

    def modules(self):
        return interrupting("naming", super().modules())

    def named_parameters(self, *args, **kwargs):
        return interrupting("tagging", super().named_parameters(*args, **kwargs))


model = Model().cuda()
x = torch.ones(4, 8, device="cuda")
for _ in range(2):
    try:
        kept = model(x)
        for _ in range(1000):  # The agent runs between two bytecodes.
            pass
    except KeyboardInterrupt:
        interrupted += 1
print("interrupted", interrupted, flush=True)
os._exit(0)
