"""A signal handler raises at random moments of a program that keeps memlab's agent busy.

    interrupted.py HANDLER MODULES

HANDLER: function, method, partial or object. MODULES: kept, or dropped and constantly created anew. Ends when an exception
of the handler has not arrived.
"""

import functools
import random
import signal
import sys

import torch
import torch.nn as nn

handler_kind, modules_are = sys.argv[1:]
ATTEMPTS = 150


class Timeout(Exception):
    pass


raised = 0


def handler(number, frame):
    global raised
    raised += 1
    while frame is not None:
        if "memlab" in frame.f_code.co_filename:
            sys.exit("a signal was handled within memlab's agent")
        frame = frame.f_back
    raise (KeyboardInterrupt if raised % 2 else Timeout)(raised)


class Handler:
    def __call__(self, number, frame):
        handler(number, frame)

    def method(self, number, frame):
        handler(number, frame)


class Large(nn.Module):
    """Slow for the agent to walk, fast to call."""

    def __init__(self):
        super().__init__()
        self.parts = parts

    def forward(self, x):
        return self.parts[0](x)


parts = nn.ModuleList([nn.Linear(2, 2) for _ in range(300)]).cuda()
x = torch.ones(2, 2, device="cuda")
handlers = {"function": handler, "method": Handler().method, "partial": functools.partial(handler), "object": Handler()}
signal.signal(signal.SIGALRM, handlers[handler_kind])
random.seed(0)
kept = []
for _ in range(ATTEMPTS):
    before = raised
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0005, 0.005))
        while raised == before:
            if modules_are == "kept":
                kept.append(model := Large())
            else:
                model = nn.Sequential(parts[0], *[nn.Identity() for _ in range(20)])
            model(x)
        print("lost", raised)
        break
    except (Timeout, KeyboardInterrupt) as error:
        assert error.args == (raised,)
print("raised", raised)
