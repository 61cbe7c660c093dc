"""A unit with a place in device memory: its tensors there, and the entries of modules that show them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from memlab import _native
from memlab._paging.paged_tensor import PagedTensor
from memlab._paging.tensor_swap import ListSlot


@dataclass
class PlacedUnit:
    """Lists of tensors and versions are in the order of `tensors`."""

    tensors: list[PagedTensor]
    buffers: list[PagedTensor]
    on_device: list[Tensor]
    unloaded: list[Tensor]
    unloaded_versions: list[int]
    # Lists, with their tensors while the unit is loaded and while it is not. A resident unit has none, and no entries of
    # dictionaries in `forms`: its tensors are always on the device.
    lists: list[tuple[ListSlot, Tensor, Tensor]]
    forms: _native.UnitForms

    @property
    def resident(self) -> bool:
        return self.forms.resident

    def show_lists(self, loaded: bool) -> None:
        for slot, on_device, unloaded in self.lists:
            slot.put(on_device if loaded else unloaded)
