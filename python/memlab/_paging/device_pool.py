"""Device memory of a paged model: one block for resident units, one for the ring, and the tensors over them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from memlab import _native
from memlab._paging.arena import ArenaMemory
from memlab._paging.edits import EditTracker
from memlab._paging.native_reads import READS
from memlab._paging.paged_tensor import PagedTensor, Weight
from memlab._paging.placed_unit import PlacedUnit
from memlab._paging.placement import LEAST_PIECE, Placement
from memlab._paging.settings import OnChange
from memlab._paging.tensor_swap import DictSlot, TensorSwap
from memlab._paging.torch_private import raw_stream, storage_key, versions_of
from memlab._paging.units import Point, Unit


class DevicePool:
    """Owns the device memory. The tensors over it keep their addresses until the next `place`."""

    def __init__(
        self,
        weights: list[Weight],
        memory: ArenaMemory,
        swap: TensorSwap,
        device: torch.device,
        on_change: OnChange,
        pipeline: _native.Pipeline,
    ) -> None:
        self.memory = memory
        self.swap = swap
        self.device = device
        self.pipeline = pipeline
        self.units: list[Unit] = []
        self.placed: dict[int, PlacedUnit] = {}  # By the unit's index.
        self.placed_units = _native.PlacedUnits()  # The same, for contexts.
        tensors = [paged for weight in weights for paged in weight.tensors]
        self.edits = EditTracker(tensors, memory, swap, self.placed, on_change, self._reload)
        self.blocks: list[Tensor] = []
        self.stable_results: dict[int, Tensor] = {}  # By id of a tensor in the ring: the tensor returned instead.
        self.overlapping: list[set[int]] = []  # Per unit: units whose places in the ring share bytes with its place.

    def stream(self) -> int:
        """Returns the calling thread's stream on the device, as CUDA's handle; 0 on the CPU."""
        return raw_stream(self.device)

    def _reload(self, index: int) -> None:
        self.pipeline.reload(index, self.stream())

    @torch.inference_mode(False)
    @torch.no_grad()
    def place(
        self,
        units: list[Unit],
        placement: Placement,
        points: list[Point],
        fallback: dict[int, list[int]],
        lookahead: int | None,
    ) -> None:
        """Allocates device memory for a placement, and starts the pipeline on it.

        The previous placement is already cleared.
        """
        self.units = units
        resident = self._block(sum(u.nbytes for u, place in zip(units, placement.places, strict=True) if place is None))
        ring = self._block(placement.ring_bytes)
        self.blocks = [resident, ring]
        ranges = []
        start = 0
        for index, (unit, place) in enumerate(zip(units, placement.places, strict=True)):
            block = resident if place is None else ring
            ranges.append(self._place_unit(index, unit, block, start if place is None else place[0], place is None))
            start += unit.nbytes if place is None else 0
        self.edits.units_placed()
        self.overlapping = _overlapping(placement.places)
        streamed = (paged for placed in self.placed.values() if not placed.resident for paged in placed.tensors)
        self.stable_results = {id(paged.on_device): paged.unloaded for paged in streamed if paged.unloaded is not None}
        needed_at = {key: set(needed) for key, needed in fallback.items()}
        for point in points:
            needed_at.setdefault(point.key, set()).update(point.units)
        self.placed_units.place(
            [placed.forms for placed in self.placed.values()], {k: list(n) for k, n in needed_at.items()}
        )
        schedule = [(point.key, point.units) for point in points]
        self.pipeline.configure(ranges, placement.places, schedule, fallback, lookahead, LEAST_PIECE, self.stream())
        for placed in self.placed.values():
            placed.forms.note_own_uses()

    def _block(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def _place_unit(self, index: int, unit: Unit, block: Tensor, start: int, resident: bool) -> list[tuple[int, int, int]]:
        """Creates a unit's tensors at `start` in `block`. Returns its ranges: offset in the arena, address, bytes."""
        storage = block.untyped_storage()
        tensors = [paged for weight in unit.weights for paged in weight.tensors]
        buffers = [paged for paged in tensors if not isinstance(paged.tensor, nn.Parameter)]
        ranges, storages, lists, entries = [], [], [], []
        for weight in unit.weights:
            own = storage[start : start + weight.padded_nbytes]
            ranges.append((weight.offset, own.data_ptr(), weight.padded_nbytes))
            storages.append(storage_key(own))
            start += weight.padded_nbytes
            for paged in weight.tensors:
                paged.on_device = paged.form_over(own)
                paged.unloaded = paged.on_device if resident else _unloaded(paged)
                self.swap.put_inside(paged, paged.unloaded)
                for slot in self.swap.slots[paged]:
                    buffer = paged if paged in buffers else None
                    if isinstance(slot, DictSlot):
                        entries.append((slot.container, slot.key, paged.on_device, paged.unloaded, buffer))
                    elif not resident:
                        lists.append((slot, paged.on_device, paged.unloaded))
        on_device = [paged.on_device for paged in tensors if paged.on_device is not None]
        unloaded = [paged.unloaded for paged in tensors if paged.unloaded is not None]
        forms = _native.UnitForms(READS, resident, entries, bool(lists), tensors, on_device, storages)
        self.placed[index] = PlacedUnit(tensors, buffers, on_device, unloaded, versions_of(unloaded), lists, forms)
        return ranges

    def clear(self, is_forked: bool = False) -> None:
        """Frees the device memory, once nothing uses it any more.

        In a forked child nothing does: the thread that copies, its locks and the device belong to its parent.
        """
        if not is_forked:
            self._end_uses()
        for paged in [paged for placed in self.placed.values() for paged in placed.tensors]:
            paged.on_device = None
            paged.unloaded = _unloaded(paged)
            self.swap.put_inside(paged, paged.unloaded)
        self.placed.clear()
        self.placed_units.place([], {})
        self.edits.units_cleared()
        self.blocks = []
        if self.device.type == "cuda" and not is_forked:
            # PyTorch's cache has blocks of the last placement and of the traced forward. Their sizes are not needed again.
            torch.cuda.empty_cache()

    def _end_uses(self) -> None:
        self.pipeline.synchronize()
        if self.placed:
            # No units: nothing may be copied to freed memory if no placement follows.
            self.pipeline.configure([], [], [], {}, None, LEAST_PIECE, self.stream())
        if self.device.type == "cuda" and self.blocks:
            torch.cuda.synchronize(self.device)

    def forget(self, weight: Weight) -> None:
        """Stops paging a weight. Call it while no unit is placed."""
        self.swap.forget(weight)
        self.edits.forget(weight)
        weight.drop_references()

    def has_views(self, index: int) -> bool:
        """Returns True if tensors besides those that modules hold use a unit's memory."""
        return self.placed[index].forms.has_views()

    def bandwidth(self, wanted: int) -> float:
        """Returns the bytes per second of copies to the device, measured with one of about `wanted` bytes."""
        nbytes = min(max(wanted, 1 << 20), self.memory.arena.nbytes, 256 << 20)
        target = self._block(nbytes)
        return self.pipeline.bandwidth(target.data_ptr(), nbytes, self.stream())


def _unloaded(paged: PagedTensor) -> Tensor:
    """Returns the form of a weight that is not on the device: its bytes on the host, as memory of the device."""
    storage = paged.weight.mapped_storage
    return paged.tensor if storage is None else paged.form_over(storage)


def _overlapping(places: list[tuple[int, int] | None]) -> list[set[int]]:
    taken = [(place[0], place[0] + place[1], unit) for unit, place in enumerate(places) if place is not None]
    taken.sort()
    overlapping: list[set[int]] = [set() for _ in places]
    for position, (_, end, unit) in enumerate(taken):
        for start, _, other in taken[position + 1 :]:
            if start >= end:
                break
            overlapping[unit].add(other)
            overlapping[other].add(unit)
    return overlapping
