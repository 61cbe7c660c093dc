"""Changes of weights: edits between forwards, and writes in forwards.

PyTorch counts the writes to a tensor in its version, but not those to its ``.data`` or its NumPy array. A unit is therefore
also copied again if the program has read one of its tensors from a module since the last forward, or holds it or its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from memlab import _native
from memlab._paging.arena import ArenaMemory
from memlab._paging.native_reads import READS
from memlab._paging.paged_tensor import PagedTensor, Weight, shared_write
from memlab._paging.placed_unit import PlacedUnit
from memlab._paging.settings import OnChange
from memlab._paging.tensor_memory import Layout, layout_of
from memlab._paging.tensor_swap import TensorSwap
from memlab._paging.torch_private import storage_key, use_count, versions_of


class EditTracker:
    """Detects edits and writes, and has their units copied again.

    `placed` is the pool's; `reload` copies one of its units.
    """

    def __init__(
        self,
        tensors: list[PagedTensor],
        memory: ArenaMemory,
        swap: TensorSwap,
        placed: dict[int, PlacedUnit],
        on_change: OnChange,
        reload: Callable[[int], None],
    ) -> None:
        self.tensors = tensors
        self.memory = memory
        self.swap = swap
        self.placed = placed
        self.on_change = on_change
        self.reload = reload
        self.unplaced = tensors  # Tensors in no unit, or in one that was left out of the placement.
        self.in_use: set[PagedTensor] = set()  # Tensors that the program held when the last forward began.
        self.unchanged: _native.EditCounters | None = None  # Read when a check of each tensor last found nothing to do.
        self.written = _native.Versions(READS, [])  # Of tensors that forwards may write to.
        self.with_buffers: list[PlacedUnit] = []

    def units_placed(self) -> None:
        """Starts tracking placed units. Their weights' present bytes are on the device."""
        self.swap.forget_touches(but_changes=True)  # Edits until now are copied with the units; replaced tensors are not.
        self.unchanged = None
        units = self.placed.values()
        self.written = _native.Versions(READS, [t for u in units for t in (u.on_device if u.resident else u.unloaded)])
        self.with_buffers = [unit for unit in units if unit.buffers]
        self.unplaced = [paged for paged in self.tensors if paged.on_device is None]

    def units_cleared(self) -> None:
        """Stops tracking, because no unit has a place any more."""
        self.written = _native.Versions(READS, [])
        self.with_buffers = []
        self.unplaced = self.tensors

    def forget(self, weight: Weight) -> None:
        """Stops tracking a weight. Call it while no unit is placed."""
        self.tensors = self.unplaced = [paged for paged in self.tensors if paged.weight is not weight]
        self.in_use.difference_update(weight.tensors)
        self.unchanged = None

    # Between forwards.

    def before_forward(self) -> None:
        """Accepts or refuses edits since the last forward. Call it before a forward, with no other in progress.

        Raises: RuntimeError that names the weights, where edits are refused or cannot be taken.
        """
        # Reading the counters of all tensors at once is quicker than checking each tensor.
        if self.unchanged is not None and not self.swap.touched() and self.unchanged.unchanged():
            return
        counters, self.unchanged = self._counters(), None
        # A program that held a tensor when the last forward began may have edited it since, and dropped it.
        in_use_before = self.in_use
        self.in_use = {paged for unit in self.placed.values() for paged in unit.tensors if paged.has_other_users()}
        suspects = self._touched() | in_use_before | self.in_use
        found = bool(suspects)
        for index, unit in self.placed.items():
            if any(paged.is_edited() for paged in unit.tensors):
                found = True
                self.take_edit(index)
            elif not suspects.isdisjoint(unit.tensors):
                self._take_suspects(index, suspects.intersection(unit.tensors))
        for paged in self.unplaced:
            # A tensor that forwards write to is itself on the device, so an edit of it needs no copy.
            if paged.unloaded is not paged.tensor and paged.is_edited():
                found = True
                self._take_edits(None, [paged])
        for paged in self.tensors:
            paged.follow_requires_grad()
        self.swap.forget_touches()
        if not found:
            self.unchanged = counters

    def _counters(self) -> _native.EditCounters:
        """Returns the present counters of all tensors, to compare with later ones if no edit has to be taken now.

        At that time, the program holds no tensor with a place, nor its memory. To give it other memory later, the program
        reads it from a dictionary that records the read. For other tensors, addresses are compared too.
        """
        unseen = [paged for paged in self.tensors if paged.is_read_unseen]
        storages = {paged.weight: paged.weight.arena_storage for paged in unseen}
        keys = [storage_key(storage) for storage in storages.values() if storage is not None]
        return _native.EditCounters(READS, self.tensors, unseen, keys)

    def _take_suspects(self, index: int, suspects: set[PagedTensor]) -> None:
        """Copies a unit whose tensors may have been edited unseen. Shared tensors are compared instead."""
        self._refuse_shared(paged for paged in suspects if paged.weight.shared)
        if not all(paged.weight.shared for paged in suspects):
            self.reload(index)

    def _refuse_shared(self, tensors: Iterable[PagedTensor]) -> None:
        """Raises RuntimeError that names shared tensors whose values differ from those of other processes."""
        names = [p.name for p in tensors if p.has_other_layout() or self.memory.differs(p, p.tensor.detach().cpu())]
        if names:
            raise RuntimeError(
                f"{', '.join(names)} changed after memlab.page, and other processes of this host read the former value from "
                'the same memory, as forwards do (shared="host"): undo the edit, or unpage the model before editing it. To '
                'edit it while it is paged, page it without shared="host"'
            )

    def _touched(self) -> set[PagedTensor]:
        """Returns tensors that were read from modules since the last forward, including replaced ones."""
        touched: set[PagedTensor] = set()
        for swapped in self.swap.dicts.values():
            if swapped.outside.touched:
                for paged, tensor in swapped.replaced():
                    self._take_replaced(paged, tensor)
                touched.update(swapped.paged.values())
        return touched

    def accept(self) -> None:
        """Accepts edits made in place, whatever `on_change` is."""
        for index, unit in self.placed.items():
            if any(paged.is_edited() for paged in unit.tensors):
                self._upload(index, unit.tensors)
        self._upload(None, [paged for paged in self.tensors if paged.is_edited()])

    def take_edit(self, index: int) -> None:
        """Copies a unit whose tensors were edited, or raises RuntimeError that names them."""
        self._take_edits(index, self.placed[index].tensors)

    def _take_edits(self, index: int | None, tensors: list[PagedTensor]) -> None:
        self._refuse_shared(paged for paged in tensors if paged.weight.shared and paged.is_edited())
        names = [paged.name for paged in tensors if paged.is_edited() and not paged.weight.shared]
        if self.on_change == "error" and names:
            raise RuntimeError(
                f"{', '.join(names)} changed after memlab.page, by an edit in place or load_state_dict: call "
                "model.memlab.refresh() to copy this edit to the device, page the model with "
                'on_change="upload" to copy all edits, or unpage it before editing it'
            )
        self._upload(index, tensors)

    def _take_replaced(self, paged: PagedTensor, tensor: Any) -> None:
        """Accepts another Parameter that the program gave a module for this one."""
        if paged.weight.shared:
            raise RuntimeError(
                f"{paged.name} was replaced by another tensor, or removed, after memlab.page, and its memory is shared with "
                "other processes of this host: unpage the model before changing what it is made of"
            )
        if (
            self.on_change == "error"
            or not isinstance(tensor, type(paged.tensor))
            or len(paged.entries) > 1
            or paged.other_holders
        ):
            raise RuntimeError(
                f"{paged.name} was replaced by another tensor, or removed, after memlab.page: unpage the model before "
                'changing what it is made of (on_change="upload" takes tensors of the same kind that are not shared), and '
                "before torch.func.functional_call or torch.export, which replace its tensors"
            )
        with torch.no_grad(), torch.inference_mode(False):
            paged.tensor.data = paged.tensor.detach().clone()  # Other references to it keep its value.
        paged.tensor = tensor

    @torch.no_grad()
    def _upload(self, index: int | None, tensors: Iterable[PagedTensor]) -> None:
        """Copies edited tensors to the arena if they have other memory, and their unit to the device."""
        tensors = list(tensors)
        self._refuse_shared(paged for paged in tensors if paged.weight.shared and paged.is_edited())
        for paged in tensors:
            if paged.has_other_layout():
                raise RuntimeError(
                    f"{paged.name} was {_layout_text(paged.layout)} when the model was paged, and is "
                    f"{_layout_text(layout_of(paged.tensor))} now: unpage the model before changing types, shapes or strides"
                )
            if paged.tensor.data_ptr() != paged.address:
                self._refuse_overwriting(paged)
                assert paged.weight.arena_storage is not None
                view = paged.view_over(paged.weight.arena_storage)
                view.copy_(paged.tensor.detach())
                with torch.inference_mode(False):
                    paged.tensor.data = view
            paged.mark_known()
        if index is not None:
            self.reload(index)

    def _refuse_overwriting(self, paged: PagedTensor) -> None:
        """Raises if other code still uses the arena's memory of a tensor that was given other memory."""
        storage = paged.weight.arena_storage
        assert storage is not None
        given_other = sum(other.tensor.data_ptr() != other.address for other in paged.weight.tensors)
        if use_count(storage_key(storage)) > paged.weight.own_use_count - given_other:
            raise RuntimeError(
                f"{paged.name} was given other memory (`.data = …`), whose bytes memlab copies to its former memory, but "
                "that is still in use and would be overwritten: keep a copy of the former values instead (`.data.clone()`)"
            )

    # Writes of forwards.

    def after_forward(self) -> None:
        """Copies the writes of a forward to the arena, and from there to places in the ring.

        Call it with no other forward in progress.
        """
        for unit in self.with_buffers:
            self.take_assigned(unit)
        if self.written.changed():
            for index, unit in self.placed.items():
                if unit.resident:
                    self.save_writes(index)
                elif _written_unloaded(unit):
                    self._refuse_shared_writes([paged for paged in unit.tensors if paged.weight.shared])
                    self.reload(index)
            self.written.note()
        for paged in self.unplaced:
            if not isinstance(paged.tensor, nn.Parameter):
                self._take_assigned_to(paged)

    def _refuse_shared_writes(self, shared: list[PagedTensor]) -> None:
        """Raises if a forward has written to shared tensors in the model's memory on the CPU. Restores their values."""
        written = [paged for paged in shared if self.memory.differs(paged, paged.tensor.detach())]
        for paged in written:
            with torch.no_grad():
                paged.tensor.copy_(paged.view_over(self.memory.filled_of(paged.weight)))
            paged.mark_known()
        if written:
            raise shared_write([paged.name for paged in written])

    def save_writes(self, index: int) -> None:
        """Copies a forward's writes to a unit's tensors from the device to the arena. Raises if the unit is shared."""
        unit = self.placed[index]
        before, now = unit.forms.on_device_versions, versions_of(unit.on_device)
        refused = []
        for paged, form, known, version in zip(unit.tensors, unit.on_device, before, now, strict=True):
            if version == known:
                continue
            if paged.weight.shared:
                refused.append(paged.name)
                continue
            with torch.no_grad():
                paged.tensor.copy_(form)
            paged.mark_known()
        unit.forms.on_device_versions = now
        if refused:
            self.reload(index)  # The next forward finds the value of the other processes.
            raise shared_write(refused)

    def take_assigned(self, unit: PlacedUnit) -> None:
        """Accepts tensors that a forward assigned in place of a unit's buffers."""
        for paged in unit.buffers:
            self._take_assigned_to(paged)

    @torch.no_grad()
    def _take_assigned_to(self, paged: PagedTensor) -> None:
        tensor = self.swap.assigned(paged)
        if tensor is None:
            return
        if tensor.shape != paged.tensor.shape or tensor.dtype != paged.tensor.dtype:
            self._put_unloaded(paged)
            raise RuntimeError(
                f"a forward assigned {tuple(tensor.shape)} of {tensor.dtype} to {paged.name}, which was "
                f"{tuple(paged.tensor.shape)} of {paged.tensor.dtype} when the model was paged: such a buffer cannot be "
                "paged"
            )
        paged.tensor.copy_(tensor)
        paged.mark_known()
        self._put_unloaded(paged)
        for index, unit in self.placed.items():
            if paged in unit.tensors:
                self.reload(index)

    def _put_unloaded(self, paged: PagedTensor) -> None:
        self.swap.put_inside(paged, paged.tensor if paged.unloaded is None else paged.unloaded)


def _written_unloaded(unit: PlacedUnit) -> bool:
    """Returns True if a forward wrote to a weight that was not loaded: to the arena, but not to the ring."""
    now = versions_of(unit.unloaded)
    written, unit.unloaded_versions = now != unit.unloaded_versions, now
    return written


def _layout_text(layout: Layout | None) -> str:
    assert layout is not None
    dtype, shape, stride = layout
    return f"{tuple(shape)} of {dtype} with strides {tuple(stride)}"
