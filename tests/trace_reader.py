"""A second, simple reader of traces, without the optimizations of the `trace` crate.

It recomputes everything from the events up to a time; tests compare both readers to PyTorch.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

SEGMENT = 128
FORWARD, BACKWARD, OPTIMIZER = 1, 2, 3


@dataclass
class Block:
    device: int
    bytes: int
    stack: int
    layer: int
    flags: int

    @property
    def phase(self):
        return self.flags & 3


@dataclass
class LiveMemory:
    """The live memory at one moment."""

    blocks: dict = field(default_factory=dict)
    segments: dict = field(default_factory=dict)
    peak: Counter = field(default_factory=Counter)
    total: Counter = field(default_factory=Counter)

    def allocated(self, device=0):
        return sum(block.bytes for block in self.blocks.values() if block.device == device)

    def reserved(self, device=0):
        return sum(size for owner, size in self.segments.values() if owner == device)


def whole_lines(trace):
    """The records of a trace. The first byte of a line is written last: a line that a thread was writing when the process
    ended begins with zeros."""
    for line in trace.splitlines():
        written = line.replace(b"\0", b"")
        try:
            if written:
                yield json.loads(written)
        except json.JSONDecodeError:
            if not line.startswith(b"\0"):
                raise


class Trace:
    def __init__(self, path):
        self.frames, self.stacks, self.layers, self.ranges, self.events, self.tags = {}, {}, {}, {}, [], []
        self.stands_for = {}  # Frames of compiled code -> the program's frames that they stand for.
        self.warnings = []
        records = whole_lines(Path(path).read_bytes())
        self.header = next(records)
        for record in records:
            if isinstance(record, list):
                self.events.append(record)
            elif "stack" in record:
                self.stacks[record["stack"]] = (record["parent"], record["frame"])
            elif "frame" in record:
                self.frames[record["frame"]] = (record["file"], record["line"], record["function"])
                if "stands_for" in record:
                    self.stands_for[record["frame"]] = record["stands_for"]
            elif "layer" in record:
                self.layers[record["layer"]] = record
            elif "range" in record:
                self.ranges[record["range"]] = (record["parent"], record["name"])
            elif "warning" in record:
                self.warnings.append(record["warning"])

    def at(self, unix_ns=None):
        """Live memory at that time, or at the end without one."""
        until = float("inf") if unix_ns is None else unix_ns - self.header["start_unix_ns"]
        live = LiveMemory()
        for event in self.events:
            if event[1] > until:
                break
            match event:
                case ["a", _, _, device, address, size, stack, layer, flags, *_]:
                    assert (device, address) not in live.blocks, "allocated twice"
                    live.blocks[device, address] = Block(device, size, stack, layer, flags)
                    live.total[device] += size
                    live.peak[device] = max(live.peak[device], live.total[device])
                case ["f", _, _, device, address, *_]:
                    live.total[device] -= live.blocks.pop((device, address)).bytes
                case ["d+", _, _, device, address, size, kind, _, _, _, _, flags, *_]:
                    if flags & SEGMENT:
                        live.segments[kind, address] = (device, size)
                case ["d-", _, _, _, address, kind, *_]:
                    live.segments.pop((kind, address), None)
        return live

    def stack(self, stack):
        """Frames of a stack, innermost first."""
        found = []
        while stack:
            stack, frame = self.stacks[stack]
            found.append(self.frames[frame])
        return found

    def line(self, stack):
        """(file, line) of the innermost frame outside site-packages and PyTorch."""
        for file, line, _ in self.stack(stack):
            if is_users(file):
                return file, line
        return None

    def range_path(self, range):
        """Names of a range and its enclosing ranges, outermost first."""
        path: list[str] = []
        while range:
            range, name = self.ranges[range]
            path.insert(0, name)
        return path

    def layer_name(self, layer):
        return self.layers[layer]["name"] if layer else None


def is_users(file):
    return file.startswith("/") and "site-packages" not in file and "/torch/" not in file
