"""From the tensors that were found to a report for each device."""

from __future__ import annotations

from itertools import compress
from typing import cast

import torch

from memlab import _native
from memlab._reporter.device_report import DeviceReport
from memlab._reporter.unseen_memory import UNKNOWN, UnseenMemory, rounded
from memlab._tensors.memory import TensorMemory


def device_reports(names: list[str], memory: TensorMemory, only: str | None, is_tracked: bool) -> dict[str, DeviceReport]:
    """Reports by device, CUDA's first. `only`: the device that is wanted. `is_tracked`: whether blocks are known."""
    found = set(memory.devices)
    allocated = {}
    if torch.cuda.is_initialized():
        sizes = {f"cuda:{card}": torch.cuda.memory_allocated(card) for card in range(torch.cuda.device_count())}
        allocated = {device: nbytes for device, nbytes in sizes.items() if nbytes or device in (only, *found)}
        found |= allocated.keys()
    wanted = sorted(found if only is None else {only}, key=_gpus_first)
    return {device: _device_report(device, names, memory, allocated.get(device), is_tracked) for device in wanted}


def _gpus_first(name: str) -> tuple[bool, str, int]:
    kind, _, index = name.partition(":")
    return kind != "cuda", kind, int(index or 0)


def _device_report(
    device: str, names: list[str], memory: TensorMemory, allocated: int | None, is_tracked: bool
) -> DeviceReport:
    """The report of a device; `allocated` is None if it is none of CUDA's, or not in use."""
    names, memory = _on_device(device, names, memory)
    count = len(names)
    shares: list[str | None] = [None] * count
    nbytes = memory.nbytes
    if len(set(memory.keys)) < count:  # The first tensor of each memory counts it, the others share it.
        first = dict(zip(reversed(memory.keys), range(count - 1, -1, -1), strict=True))
        owners = [first[key] for key in memory.keys]
        shares = [None if owner == index else names[owner] for index, owner in enumerate(owners)]
        nbytes = [0 if name else size for size, name in zip(nbytes, shares, strict=True)]
    report = DeviceReport(device, names, memory.shapes, memory.elements, shares=shares, allocated=allocated)
    if allocated is None or not is_tracked:
        report.sizes = list(map(rounded, nbytes))
        if allocated is not None and allocated > report.nbytes:
            report.unseen = [UnseenMemory(UNKNOWN, allocated - report.nbytes)]
        return report
    card = int(device.removeprefix("cuda:"))
    taken, unseen, outside = _native.below_tensors(card, memory.addresses, nbytes)
    if None in taken:  # Not from PyTorch's allocator, or no memory at all.
        rest = [0 if size is not None else rounded(need) for size, need in zip(taken, nbytes, strict=True)]
        report.foreign = sum(rest)
        taken = [size or other for size, other in zip(taken, rest, strict=True)]
    report.sizes = cast("list[int]", taken)
    report.unseen = [UnseenMemory(*row) for row in unseen]
    report.outside = [UnseenMemory(*row) for row in outside]
    in_blocks = report.nbytes - report.foreign + sum(row.nbytes for row in report.unseen)
    report.used = in_blocks + sum(row.nbytes for row in report.outside)
    return report


def _on_device(device: str, names: list[str], memory: TensorMemory) -> tuple[list[str], TensorMemory]:
    """The tensors of a device. An empty one counts only if it keeps memory alive, as ``x[:0]`` does."""
    if set(memory.devices) == {device} and 0 not in memory.elements:
        return names, memory
    chosen = list(map(device.__eq__, memory.devices))
    if 0 in memory.elements and device != "meta":
        held = zip(chosen, memory.elements, memory.nbytes, strict=True)
        chosen = [is_there and bool(elements or nbytes) for is_there, elements, nbytes in held]
    columns = {name: list(compress(column, chosen)) for name, column in vars(memory).items()}
    return list(compress(names, chosen)), TensorMemory(**columns)
