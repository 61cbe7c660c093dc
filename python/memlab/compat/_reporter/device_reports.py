"""Creates a report for each device from the tensors that were found."""

from __future__ import annotations

from contextlib import suppress

import torch

from memlab import _native
from memlab.compat._reporter.device_report import DeviceReport
from memlab.compat._reporter.unseen_memory import UNKNOWN, UnseenMemory
from memlab.holding import holders_of_blocks


def device_reports(
    table: _native.TensorTable, only: str | None, is_tracked: bool, with_holders: bool
) -> dict[str, DeviceReport]:
    """Returns reports by device, CUDA's first. `only`: the requested device. `is_tracked`: True if blocks are known.

    `with_holders`: searches for the objects that keep memory without a tensor alive.
    """
    found = set(table.devices)
    allocated = {}
    if torch.cuda.is_initialized():
        sizes = {f"cuda:{card}": torch.cuda.memory_allocated(card) for card in range(torch.cuda.device_count())}
        allocated = {device: nbytes for device, nbytes in sizes.items() if nbytes or device in (only, *found)}
        found |= allocated.keys()
    wanted = sorted(found if only is None else {only}, key=_gpus_first)
    return {device: _device_report(device, table, allocated.get(device), is_tracked, with_holders) for device in wanted}


def _gpus_first(name: str) -> tuple[bool, str, int]:
    kind, _, index = name.partition(":")
    return kind != "cuda", kind, int(index or 0)


def _device_report(
    device: str, table: _native.TensorTable, allocated: int | None, is_tracked: bool, with_holders: bool
) -> DeviceReport:
    """Returns the report of a device. `allocated` is None if it is not a CUDA device, or not in use."""
    has_blocks = allocated is not None and is_tracked
    columns = table.columns(device, int(device.removeprefix("cuda:")) if has_blocks else None)
    report = DeviceReport(
        device,
        columns["names"],
        columns["shapes"],
        columns["elements"],
        columns["sizes"],
        columns["shares"],
        columns["foreign"],
        allocated,
        [UnseenMemory(*row) for row in columns["unseen"]],
        [UnseenMemory(*row) for row in columns["outside"]],
    )
    if with_holders and columns["unseen_blocks"]:
        with suppress(RuntimeError):  # No search can be made; the table is complete without it.
            report.holders = holders_of_blocks(columns["unseen_blocks"])
    if has_blocks:
        in_blocks = report.nbytes - report.foreign + sum(row.nbytes for row in report.unseen)
        report.used = in_blocks + sum(row.nbytes for row in report.outside)
    elif allocated is not None and allocated > report.nbytes:
        report.unseen = [UnseenMemory(UNKNOWN, allocated - report.nbytes)]
    return report
