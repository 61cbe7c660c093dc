"""Where weights are on the device: its memory, the pipeline that fills it, and the tensors that look at it."""

from __future__ import annotations

import operator
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from memlab import _native
from memlab._paging.tensor_swap import Exchange, ListSlot
from memlab._paging.units import Point, Unit
from memlab._paging.paged_tensor import Bytes, Home, Layout, Weight, layout_of, versions_of

OnChange = str  # "error" or "upload"


@dataclass
class Placement:
    """What the planner found, as it returns it."""

    resident: list[bool]
    places: list[tuple[int, int] | None]
    ring_bytes: int
    resident_bytes: int
    predicted_ns: int
    floor_ns: int
    compute_ns: int
    streamed_bytes: int


@dataclass
class _Present:
    """A unit's tensors while it is placed on the device."""

    homes: list[Home]
    buffers: list[Home]
    resident: bool
    # Where modules hold them, what when loaded, and what when not: in dictionaries, and in lists.
    entries: list[tuple[dict[str, Any], str, Tensor, Tensor]] = field(default_factory=list)
    lists: list[tuple[ListSlot, Tensor, Tensor]] = field(default_factory=list)
    here: list[Tensor] = field(default_factory=list)
    here_versions: list[int] = field(default_factory=list)  # An operation that writes a tensor changes its version.
    resting: list[Tensor] = field(default_factory=list)
    resting_versions: list[int] = field(default_factory=list)
    storages: list[int] = field(default_factory=list)
    lookers: list[int] = field(default_factory=list)  # How many tensors look at each of them.
    users: int = 0

    def looked_at(self) -> bool:
        lookers = list(map(torch._C._storage_Use_Count, self.storages))
        return lookers != self.lookers and any(map(operator.gt, lookers, self.lookers))

    def put_here(self) -> None:
        for container, key, here, _ in self.entries:
            container[key] = here
        for slot, here, _ in self.lists:
            slot.put(here)

    def put_resting(self) -> None:
        for container, key, _, resting in self.entries:
            container[key] = resting
        for slot, _, resting in self.lists:
            slot.put(resting)


# What of tensors shows that they were edited, or may be: versions, addresses, and how many hold them and their storages.
Evidence = tuple[list[int], list[int], list[int], list[int]]


@dataclass
class Residence:
    """Owns the device memory. The tensors over it keep their addresses until the next `place`."""

    homes: list[Home]
    memory: Bytes
    exchange: Exchange
    device: torch.device
    on_change: OnChange
    pipeline: _native.Pipeline
    units: list[Unit] = field(default_factory=list)
    present: dict[int, _Present] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    blocks: list[Tensor] = field(default_factory=list)
    unplaced: list[Home] = field(init=False)  # Those that no unit is made of, or that of a unit left out.
    returned: dict[int, Tensor] = field(default_factory=dict)  # By id: what forwards return for what comes and goes.
    overlapping: list[set[int]] = field(default_factory=list)  # Per unit: those whose place is partly the same.
    in_arena: list[int] = field(default_factory=list)  # The units' storages there.
    held: set[Home] = field(default_factory=set)  # What somebody held when the last forward began.
    untouched: Evidence | None = None  # How it was when a look at each tensor found nothing to do.
    written: list[Tensor] = field(default_factory=list)  # Those that are looked at after each forward.
    written_versions: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.unplaced = self.homes

    def stream(self) -> int:
        """The calling thread's stream on the device, as CUDA names it; 0 on the CPU."""
        if self.device.type == "cpu":
            return 0
        return int(torch._C._cuda_getCurrentRawStream(self.device.index))

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
        """Takes device memory for a placement, and starts the pipeline on it. What was there before is cleared already."""
        self.units = units
        resident = self._block(sum(u.nbytes for u, place in zip(units, placement.places, strict=True) if place is None))
        ring = self._block(placement.ring_bytes)
        self.blocks = [resident, ring]
        ranges = []
        start = 0
        for index, (unit, place) in enumerate(zip(units, placement.places, strict=True)):
            block = resident if place is None else ring
            ranges.append(self._settle(index, unit, block, start if place is None else place[0], place is None))
            start += unit.nbytes if place is None else 0
        for outside in self.exchange.outsides:
            outside.touched = outside.changed  # Whatever was edited until now is copied now; not what was exchanged.
        for present in self.present.values():
            present.lookers = list(map(torch._C._storage_Use_Count, present.storages))
        weights = (weight for unit in units for weight in unit.weights)
        self.in_arena = [weight.in_arena._cdata for weight in weights if weight.in_arena is not None]
        self.untouched = None
        self.written = [t for p in self.present.values() for t in (p.here if p.resident else p.resting)]
        self.written_versions = versions_of(self.written)
        self.unplaced = [home for home in self.homes if home.here is None]
        self.overlapping = _overlapping(placement.places)
        streamed = (home for present in self.present.values() if not present.resident for home in present.homes)
        self.returned = {id(home.here): home.resting for home in streamed if home.resting is not None}
        schedule = [(point.key, point.units) for point in points]
        self.pipeline.configure(ranges, placement.places, schedule, fallback, lookahead, self.stream())

    def _block(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def _settle(self, index: int, unit: Unit, block: Tensor, start: int, stays: bool) -> list[tuple[int, int, int]]:
        storage = block.untyped_storage()
        homes = [home for weight in unit.weights for home in weight.homes]
        present = _Present(homes, [home for home in homes if not isinstance(home.tensor, nn.Parameter)], stays)
        ranges = []
        for weight in unit.weights:
            own = storage[start : start + weight.span]
            ranges.append((weight.offset, own.data_ptr(), weight.span))
            start += weight.span
            for home in weight.homes:
                home.here = home.form(own)
                home.resting = home.here if stays else self._unloaded(home)
                self.exchange.set_inside(home, home.resting)
                present.here.append(home.here)
                present.resting.append(home.resting)
                for slot in () if stays else self.exchange.slots[home]:
                    if isinstance(slot, ListSlot):
                        present.lists.append((slot, home.here, home.resting))
                    else:
                        present.entries.append((slot.container, slot.key, home.here, home.resting))
            present.storages.append(own._cdata)
        present.here_versions = versions_of(present.here)
        present.resting_versions = versions_of(present.resting)
        self.present[index] = present
        return ranges

    def _unloaded(self, home: Home) -> Tensor:
        """What a forward finds while the weight is not on the device: its bytes on the host, as the device sees them."""
        storage = home.weight.reachable_storage
        return home.tensor if storage is None else home.form(storage)

    def clear(self) -> None:
        """Gives the device memory back, once nothing uses it any more."""
        self.pipeline.synchronize()
        if self.present:
            # Nothing may be copied to what is given back, should there be no other placement.
            self.pipeline.configure([], [], [], {}, None, self.stream())
        if self.device.type == "cuda" and self.blocks:
            torch.cuda.synchronize(self.device)
        for home in [home for present in self.present.values() for home in present.homes]:
            home.here = None
            home.resting = self._unloaded(home)
            self.exchange.set_inside(home, home.resting)
        self.present = {}
        self.written = []
        self.unplaced = self.homes
        self.blocks = []
        if self.device.type == "cuda":
            # What the last placement and the traced forward left in PyTorch's cache is not of the sizes needed next.
            torch.cuda.empty_cache()

    def forget(self, weight: Weight) -> None:
        """A weight is not paged any more. (To be called when nothing is placed.)"""
        self.exchange.forget(weight)
        self.homes = self.unplaced = [home for home in self.homes if home.weight is not weight]
        self.held.difference_update(weight.homes)
        self.untouched = None
        weight.let_go()

    def appear(self, index: int) -> None:
        """A unit was loaded for this thread: modules hold its tensors on the device from here on."""
        present = self.present[index]
        if present.buffers:
            self._take_assigned(present)
        with self.lock:
            present.users += 1
            if present.users == 1:
                present.put_here()
        if not present.resident:
            for home in present.homes:
                if home.changed():
                    self._take_edit(index)
                    break

    def before_release(self, index: int) -> bool:
        """Saves what was written to a unit, while it is still there. Whether somebody goes on looking at its memory."""
        present = self.present[index]
        if present.resident:
            return False
        if versions_of(present.here) != present.here_versions:
            self._keep_writes(present)
        return present.users == 1 and present.looked_at()

    def looked_at(self, index: int) -> bool:
        """Whether there are views of a unit's memory beside the tensors that modules hold."""
        return self.present[index].looked_at()

    def rest(self, index: int) -> None:
        """This thread needs the unit no longer."""
        present = self.present[index]
        try:
            if present.buffers:
                self._take_assigned(present)
        finally:
            with self.lock:
                present.users -= 1
                if present.users == 0:
                    present.put_resting()

    def begin(self) -> None:
        """Before a forward, with no other under way: what was edited, or may have been, since the last one."""
        evidence = self._evidence()
        if evidence == self.untouched and not self.exchange.touched():
            return
        self.untouched = None
        # (Who held something at the last forward's begin may have edited it since, and let go.)
        held_before = self.held
        self.held = {home for present in self.present.values() for home in present.homes if home.held_elsewhere()}
        suspects = self._touched() | held_before | self.held
        found = bool(suspects)
        for index, present in self.present.items():
            if any(home.edited() for home in present.homes):
                found = True
                self._take_edit(index)
            elif not suspects.isdisjoint(present.homes):
                self.pipeline.reload(index, self.stream())
        for home in self.unplaced:
            # (What forwards write to is on the device itself, and an edit of it needs nothing.)
            if home.resting is not home.tensor and home.edited():
                found = True
                self._take_edit(None, home)
        for home in self.homes:
            home.require_alike()
        self.exchange.forget_touches()
        if not found:
            self.untouched = evidence

    def _evidence(self) -> Evidence:
        """Of all tensors at once: a look at each is a good part of what paging costs the host."""
        tensors = [home.tensor for home in self.homes]
        return (
            versions_of(tensors),
            [tensor.data_ptr() for tensor in tensors],
            list(map(sys.getrefcount, tensors)),
            list(map(torch._C._storage_Use_Count, self.in_arena)),
        )

    def _touched(self) -> set[Home]:
        """Tensors that were asked for since the last forward, those exchanged for others among them."""
        touched: set[Home] = set()
        for holder in self.exchange.holders.values():
            if holder.outside.touched:
                for name, home, tensor in holder.exchanged():
                    self._take_exchange(name, home, tensor)
                touched.update(holder.homes.values())
        return touched

    def end(self) -> None:
        """After a forward, with no other under way: what it wrote is the weights' value from now on."""
        for present in self.present.values():
            if present.buffers:
                self._take_assigned(present)
        if versions_of(self.written) != self.written_versions:
            for index, present in self.present.items():
                if present.resident:
                    self._keep_writes(present)
                elif self._resting_written(present):
                    self.pipeline.reload(index, self.stream())
            self.written_versions = versions_of(self.written)
        for home in self.unplaced:
            if not isinstance(home.tensor, nn.Parameter):
                self._take_assigned_to(home)

    def accept(self) -> None:
        """Edits made in place are what the weights are from now on."""
        for index, present in self.present.items():
            if any(home.edited() for home in present.homes):
                self._upload(index, present.homes)
        self._upload(None, [home for home in self.homes if home.edited()])

    def _take_edit(self, index: int | None, *homes: Home) -> None:
        edited = homes if index is None else tuple(self.present[index].homes)
        if self.on_change == "error":
            names = [home.name for home in edited if home.edited()]
            raise RuntimeError(
                f"{', '.join(names)} changed after memlab.page: an edit in place, or load_state_dict. Say "
                'memlab.page(..., on_change="upload") to have edits taken to the device, model.memlab.refresh() to take '
                "this one, or unpage the model before editing it."
            )
        self._upload(index, edited)

    def _take_exchange(self, name: str, home: Home, tensor: Any) -> None:
        """A module was given another Parameter for this one."""
        if self.on_change == "error" or not isinstance(tensor, type(home.tensor)) or len(home.places) > 1:
            raise RuntimeError(
                f"{home.name} was exchanged for another tensor, or removed, after memlab.page: unpage the model before "
                'changing what it is made of (on_change="upload" takes tensors of the same kind that are not shared), and '
                "before torch.func.functional_call or torch.export, which exchange its tensors"
            )
        with torch.no_grad(), torch.inference_mode(False):
            home.tensor.data = home.tensor.detach().clone()  # Whoever has it keeps its value.
        home.tensor = tensor

    def _take_assigned(self, present: _Present) -> None:
        for home in present.buffers:
            self._take_assigned_to(home)

    @torch.no_grad()
    def _take_assigned_to(self, home: Home) -> None:
        """A forward put another tensor in a buffer's place: that is the buffer's value from now on."""
        tensor = self.exchange.assigned(home)
        if tensor is None:
            return
        if tensor.shape != home.tensor.shape or tensor.dtype != home.tensor.dtype:
            self._put_resting(home)
            raise RuntimeError(
                f"a forward assigned {tuple(tensor.shape)} of {tensor.dtype} to {home.name}, which was "
                f"{tuple(home.tensor.shape)} of {home.tensor.dtype} when the model was paged: such a buffer cannot be paged"
            )
        home.tensor.copy_(tensor)
        home.remember()
        self._put_resting(home)
        for index, present in self.present.items():
            if home in present.homes:
                self.pipeline.reload(index, self.stream())

    def _put_resting(self, home: Home) -> None:
        self.exchange.set_inside(home, home.tensor if home.resting is None else home.resting)

    def _resting_written(self, present: _Present) -> bool:
        """Whether a forward wrote to a weight while it was not loaded: it is in the arena, but not in the ring."""
        now = versions_of(present.resting)
        written, present.resting_versions = now != present.resting_versions, now
        return written

    @torch.no_grad()
    def _upload(self, index: int | None, homes: Iterable[Home]) -> None:
        for home in homes:
            if home.laid_out_anew():
                raise RuntimeError(
                    f"{home.name} was {_in_words(home.layout)} when the model was paged, and is "
                    f"{_in_words(layout_of(home.tensor))} now: unpage the model before changing types, shapes or strides"
                )
            if home.tensor.data_ptr() != home.address:  # It was given other memory: back into the arena with it.
                self._refuse_overwriting(home)
                assert home.weight.in_arena is not None
                view = home.over(home.weight.in_arena)
                view.copy_(home.tensor.detach())
                with torch.inference_mode(False):
                    home.tensor.data = view
            home.remember()
        if index is not None:
            self.pipeline.reload(index, self.stream())

    def _refuse_overwriting(self, home: Home) -> None:
        """Raises if somebody holds the memory that a tensor had, and may want what is in it."""
        storage = home.weight.in_arena
        assert storage is not None
        given_other = sum(other.tensor.data_ptr() != other.address for other in home.weight.homes)
        if torch._C._storage_Use_Count(storage._cdata) > home.weight.users - given_other:
            raise RuntimeError(
                f"{home.name} was given other memory (`.data = …`), which is to be copied to where it was, and somebody "
                "still holds that: memlab would overwrite it. Keep a copy of it instead (`.data.clone()`)."
            )

    def _keep_writes(self, present: _Present) -> None:
        now = versions_of(present.here)
        for home, here, before, version in zip(present.homes, present.here, present.here_versions, now, strict=True):
            if version != before:
                with torch.no_grad():
                    home.tensor.copy_(here)
                home.remember()
        present.here_versions = now

    def bandwidth(self, wanted: int) -> float:
        """Bytes a second that copies to the device make, measured."""
        nbytes = min(max(wanted, 1 << 20), self.memory.arena.nbytes, 256 << 20)
        target = self._block(nbytes)
        return self.pipeline.bandwidth(target.data_ptr(), nbytes, self.stream())


def _in_words(layout: Layout | None) -> str:
    assert layout is not None
    dtype, shape, stride = layout
    return f"{tuple(shape)} of {dtype} with strides {tuple(stride)}"


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
