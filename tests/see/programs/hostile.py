"""A program whose objects count every use of their methods, and which watches its children: a search must use none."""

import gc
import json
import os
import signal
import sys
import threading
import time
import weakref

import memlab
import torch
from refused_copies import refuse_copies

uses: list = []
signals: list = []


class Meta(type):
    def __hash__(cls):
        uses.append("metaclass hash")
        return 1

    def __eq__(cls, other):
        uses.append("metaclass eq")
        return NotImplemented

    def __getattribute__(cls, name):
        if name in ("next_functions", "__qualname__", "__module__", "cells"):
            uses.append(f"metaclass {name}")
        return super().__getattribute__(name)

    def __instancecheck__(cls, instance):
        uses.append("isinstance")
        return False


class Hostile(metaclass=Meta):
    def __init__(self):
        self.big = torch.zeros(1 << 18, device="cuda")

    def __getattr__(self, name):
        uses.append(name)
        raise RuntimeError(name)

    @property
    def __class__(self):
        uses.append("class")
        return int

    @property
    def __dict__(self):
        uses.append("dict")
        return {}

    def __eq__(self, other):
        uses.append("eq")
        raise RuntimeError

    def __hash__(self):
        uses.append("hash")
        return 0

    def __repr__(self):
        uses.append("repr")
        return ""

    def __bool__(self):
        uses.append("bool")
        raise RuntimeError

    def __len__(self):
        uses.append("len")
        raise RuntimeError

    def __del__(self):
        uses.append("del")


class List(list):
    def __len__(self):
        uses.append("list len")
        return 0

    def __iter__(self):
        uses.append("list iter")
        return iter(())

    def __getitem__(self, index):
        uses.append("list item")
        raise IndexError


class Dict(dict):
    def __getitem__(self, key):
        uses.append("dict item")
        raise KeyError

    def items(self):
        uses.append("dict items")
        return []


class Subclass(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), keywords=None):
        uses.append(str(function))
        return super().__torch_function__(function, types, arguments, keywords or {})


signal.signal(signal.SIGCHLD, lambda *_: signals.append("SIGCHLD"))
os.register_at_fork(before=lambda: uses.append("fork"), after_in_child=lambda: os.write(1, b"child\n"))
held = [Hostile() for _ in range(3)]
listed = List([torch.zeros(1 << 18, device="cuda")])
table = Dict(first=torch.zeros(1 << 18, device="cuda"))
odd = torch.zeros(1 << 18, device="cuda").as_subclass(Subclass)
watched = weakref.ref(held[0], lambda _: uses.append("weak reference"))
deep: list = []
for _ in range(100_000):
    deep = [deep]
many = [[] for _ in range(300_000)]
changing = {number: [number] for number in range(1000)}
stop = threading.Event()


def change():
    number = 1000
    while not stop.is_set():
        changing[number] = [number]
        changing.pop(number - 1000)
        number += 1


thread = threading.Thread(target=change, daemon=True)
thread.start()
if "frozen" in sys.argv:
    gc.freeze()
gc.set_threshold(12345, 12, 13)
if "refused" in sys.argv:
    refuse_copies()
del uses[:]
counts = [sys.getrefcount(held[0]), sys.getrefcount(odd), sys.getrefcount(listed)]
start = time.perf_counter()
found = [memlab.holders() for _ in range(3)]
elapsed = time.perf_counter() - start
after = [sys.getrefcount(held[0]), sys.getrefcount(odd), sys.getrefcount(listed)]
stop.set()
thread.join()
children = True
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    children = False
print(
    json.dumps(
        {
            "uses": uses,
            "signals": signals,
            "children": children,
            "references": after == counts,
            "collector": [gc.isenabled(), list(gc.get_threshold())],
            "bytes": [sum(holder.bytes for holder in holders) + holders.unreached for holders in found],
            "allocated": torch.cuda.memory_allocated(),
            "unreached": [holders.unreached for holders in found],
        }
    )
)
sys.stdout.flush()
uses.clear()
gc.set_threshold(0)
os._exit(0)
