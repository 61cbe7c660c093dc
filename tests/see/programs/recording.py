"""Reads the trace that memlab writes of this process, for programs that wait for a record."""

import json
import os
from pathlib import Path
from time import monotonic, sleep

# Only a hang reaches this limit.
PATIENCE_S = 600


def until(condition, what):
    """Polls until the condition holds."""
    deadline = monotonic() + PATIENCE_S
    while not condition():
        assert monotonic() < deadline, f"still not: {what}"
        sleep(0.01)


def path():
    """Path of the trace that this process has mapped; None before the first record."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    mapped = [line.split(maxsplit=5)[5] for line in maps if line.endswith((".jsonl", ".jsonl.next"))]
    return Path(mapped[-1]) if mapped else None


def lines(start):
    """Lines of the trace with this beginning."""
    trace = path()
    return [line for line in trace.read_bytes().split(b"\n") if line.startswith(start)] if trace else []


def layers():
    """Layer names by number. memlab names a layer on the main thread, between two bytecodes; until then its name is None."""
    return {layer["layer"]: layer["name"] for layer in map(json.loads, lines(b'{"layer"'))}


def until_room(most):
    """Waits until the lines of the trace and of its successor take fewer bytes together.

    The files themselves grow ahead of their lines, and may be larger while memlab has no reason yet to condense them.
    """
    until(lambda: sum(map(written, Path().glob("*.jsonl*"))) < most, "the trace is condensed")


def written(file):
    try:
        return len(file.read_bytes().rstrip(b"\0"))
    except FileNotFoundError:  # It was renamed.
        return 0


def until_named():
    until(lambda: None not in layers().values(), "all layers are named")


def used(device=0):
    """Bytes in use on a device, in each sample so far."""
    return [sample[3] for sample in map(json.loads, lines(b'["used",')) if sample[2] == device]


def until_sampled(*devices):
    """Waits for a sample of each device with the bytes that are in use now."""
    import torch

    def is_sampled(device):
        free, total = torch.cuda.mem_get_info(device)
        # On a real card other processes change this figure.
        return used(device)[-1:] == [total - free] if "SIMGPU_CARDS" in os.environ else used(device) != []

    for device in devices or [0]:
        until(lambda device=device: is_sampled(device), f"device {device} is sampled")
