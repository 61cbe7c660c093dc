"""Runs operations in several threads, each on its own line and with its own size of gradient.

    autograd.py OUT.json

OUT: {bytes of a gradient: line of the forward operation}. The program checks the sequence number of each operation's node:
the test only means something if PyTorch counts them per thread.
"""

import inspect
import json
import sys
import threading

import torch

expected = {}
numbers = {}


def line():
    return inspect.currentframe().f_back.f_lineno


def note(output, gradient_elements, at):
    expected[-(-gradient_elements * 4 // 512) * 512] = at
    numbers.setdefault(threading.get_ident(), []).append(output.grad_fn._sequence_nr())


together = threading.Barrier(4)


def work(base):
    together.wait()  # Python reuses the ident of an ended thread.
    x = torch.ones(64, base, device="cuda", requires_grad=True)
    y = torch.cat([x, x], 1)
    w = torch.ones(2 * base, base + 3, device="cuda", requires_grad=True)
    z, at = y @ w, line()
    note(z, 2 * base * (base + 3), at)
    v = torch.ones(base + 3, base + 7, device="cuda", requires_grad=True)
    u, at = (
        z @ v,
        line() - 1,
    )
    note(u, (base + 3) * (base + 7), at)
    u.sum().backward()


threads = [threading.Thread(target=work, args=(base,)) for base in (20, 40, 60, 80)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len({tuple(sequence) for sequence in numbers.values()}) < len(numbers), "numbers are counted per thread"
with open(sys.argv[1], "w") as file:
    json.dump(expected, file)
