"""From the tensors that were found to a report for each device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from memlab._tools.device_report import DeviceReport
from memlab._tools.tensor_memory import TensorMemory
from memlab._tools.unseen_memory import UNKNOWN, Block, Blocks, UnseenMemory, rounded


class Category(Protocol):
    """A device's memory of one category."""

    @property
    def category(self) -> str: ...
    @property
    def live(self) -> int: ...


class Tracker(Protocol):
    """What is asked of `memlab.tracker`."""

    def live_blocks(self, device: int, /) -> Sequence[Block]: ...
    def by_category(self, device: int, /) -> Sequence[Category]: ...


def device_reports(
    names: list[str], memory: TensorMemory, only: str | None, tracker: Tracker | None
) -> dict[str, DeviceReport]:
    """Reports by device, CUDA's first. `only`: the device that is wanted. `tracker`: None if it does not run."""
    found = set(memory.devices)
    if torch.cuda.is_initialized():
        found |= {f"cuda:{card}" for card in range(torch.cuda.device_count()) if torch.cuda.memory_allocated(card)}
    if only is not None:
        found = {only}
    return {name: _device_report(name, names, memory, tracker) for name in sorted(found, key=_gpus_first)}


def _gpus_first(name: str) -> tuple[bool, str, int]:
    kind, _, index = name.partition(":")
    return kind != "cuda", kind, int(index or 0)


def _device_report(device: str, names: list[str], memory: TensorMemory, tracker: Tracker | None) -> DeviceReport:
    report = DeviceReport(device)
    chosen: Sequence[int] = range(len(names))
    if set(memory.devices) != {device}:
        chosen = [index for index in chosen if memory.devices[index] == device]
    if device != "meta" and 0 in memory.elements:  # An empty tensor counts if it keeps a memory alive: x[:0], for example.
        chosen = [index for index in chosen if memory.elements[index] or memory.nbytes[index]]
    report.names = [names[index] for index in chosen]
    report.shapes = [memory.shapes[index] for index in chosen]
    report.elements = [memory.elements[index] for index in chosen]
    is_cuda = device.startswith("cuda:") and torch.cuda.is_initialized()
    card = int(device.removeprefix("cuda:")) if is_cuda else -1
    blocks = Blocks(tracker.live_blocks(card)) if is_cuda and tracker is not None else None
    first: dict[int, str] = {}
    for index in chosen:
        key = memory.keys[index]
        shared = first.get(key)
        report.shares.append(shared)
        if shared is not None:
            report.sizes.append(0)
            continue
        first[key] = names[index]
        nbytes = memory.nbytes[index]
        taken = blocks.take(memory.addresses[index], nbytes) if blocks is not None else rounded(nbytes)
        if taken is None:
            taken = rounded(nbytes)
            report.foreign += taken
        report.sizes.append(taken)
    if is_cuda:
        report.allocated = torch.cuda.memory_allocated(card)
    if blocks is not None and tracker is not None:
        used = {entry.category: entry.live for entry in tracker.by_category(card)}
        report.unseen, report.outside, report.used = blocks.unseen(), blocks.outside(used), sum(used.values())
    elif report.allocated is not None and report.allocated > report.nbytes:
        report.unseen = [UnseenMemory(UNKNOWN, report.allocated - report.nbytes)]
    return report
