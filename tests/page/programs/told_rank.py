"""Processes of a job. Each builds a model and runs the tests' commands, which are lines of Python; frequent ones are here.

Forks a process for each line on standard input: three files, separated by tabs, for its input, output and errors. It runs
each line of its input, and writes the result of each to its output, as JSON. PYTHONPATH=python finds the package.
"""

import ctypes
import gc
import json
import os
import signal
import sys
import time  # noqa: F401 (for lines of tests)

import memlab
import torch
from memlab._paging import arena, host_sharing  # noqa: F401 (for lines of tests)
from torch import nn

torch.set_num_threads(1)
WIDTH = 512


def make(seed=0, layers=24):
    """A model of 1 MiB a layer, and its result for `x`."""
    torch.manual_seed(seed)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers))).eval().requires_grad_(False)
    return model, model(x)


def page(model, device="cpu", **options):
    return memlab.page(model, device, **{"budget": "4MiB", "max_layer_size": 1, "shared": "host"} | options)


def computes(model, expected, forwards=4):
    """Returns true if forwards of every stage compute the same."""
    with torch.no_grad():
        return all(torch.equal(model(x).cpu(), expected) for _ in range(forwards))


def pss_of_weights():
    """Bytes of shared weights; pages that several processes map are divided among them."""
    return _mapped("Pss:", of_weights=True)


def own_bytes():
    """Bytes of all other private memory of this process, not shared even with the process that forked it."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # The C library keeps a varying amount of freed memory.
    return _mapped("Private_Dirty:", of_weights=False)


def _mapped(figure, of_weights):
    total, counts = 0, False
    with open("/proc/self/smaps") as lines:
        for line in lines:
            first, *rest = line.split()
            if not first.endswith(":"):
                counts = ("memlab-weights" in line) is of_weights
            elif counts and first == figure:
                total += int(rest[0]) << 10
    return total


def weights_file():
    """Identities of the memory that this process maps as shared weights, unique at any time."""
    with open("/proc/self/maps") as lines:
        return sorted({line.split()[4] for line in lines if "memlab-weights" in line})


def failure(action):
    """The exception that `action` raises, as text."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


x = torch.ones(2, WIDTH)


def obey():
    """Runs lines until the input ends."""
    print(json.dumps(os.getpid()), flush=True)
    for line in sys.stdin:
        try:
            code = compile(line, "<test>", "eval")
        except SyntaxError:
            exec(line, globals())
            print("null", flush=True)
        else:
            print(json.dumps(eval(code, globals()), default=repr), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Avoids zombies of ended ranks.
    for line in sys.stdin:
        files = line.rstrip("\n").split("\t")
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, (file, flags) in enumerate(
                zip(files, (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY | os.O_CREAT), strict=True)
            ):
                os.dup2(os.open(file, flags, 0o600), number)
            sys.stdin = open(0)  # noqa: SIM115 (the parent's has read ahead)
            obey()
            os._exit(0)
