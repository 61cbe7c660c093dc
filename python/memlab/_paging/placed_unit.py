"""A unit with a place in device memory: its tensors there, and the entries of modules that show them."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from memlab._paging.paged_tensor import PagedTensor
from memlab._paging.tensor_swap import ListSlot
from memlab._paging.torch_private import use_count


@dataclass
class PlacedUnit:
    """Lists of tensors and versions are in the order of `tensors`."""

    tensors: list[PagedTensor]
    buffers: list[PagedTensor]
    resident: bool
    # Entries of dictionaries and lists, with what is there while the unit is loaded and what while it is not. A resident
    # unit has none: its tensors on the device are there all the time.
    entries: list[tuple[dict[str, Any], str, Tensor, Tensor]] = field(default_factory=list)
    lists: list[tuple[ListSlot, Tensor, Tensor]] = field(default_factory=list)
    on_device: list[Tensor] = field(default_factory=list)
    on_device_versions: list[int] = field(default_factory=list)  # An operation that writes to a tensor changes its version.
    unloaded: list[Tensor] = field(default_factory=list)
    unloaded_versions: list[int] = field(default_factory=list)
    storages: list[int] = field(default_factory=list)  # Keys of its weights' storages on the device.
    own_use_counts: list[int] = field(default_factory=list)  # How many tensors use each, without views that others made.
    threads: int = 0  # How many threads have it loaded.

    def has_views(self) -> bool:
        """Whether tensors beside those that modules hold use its memory."""
        now = list(map(use_count, self.storages))
        return now != self.own_use_counts and any(map(operator.gt, now, self.own_use_counts))

    def show_loaded(self) -> None:
        for container, key, on_device, _ in self.entries:
            container[key] = on_device
        for slot, on_device, _ in self.lists:
            slot.put(on_device)

    def show_unloaded(self) -> None:
        for container, key, _, unloaded in self.entries:
            container[key] = unloaded
        for slot, _, unloaded in self.lists:
            slot.put(unloaded)
