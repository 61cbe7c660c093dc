"""Where weights are on the device: its memory, the pipeline that fills it, and the tensors that look at it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from memlab import _native
from memlab.exchange import Exchange, Slot
from memlab.units import Point, Unit
from memlab.weights import Bytes, Home, version_of

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
    slots: list[tuple[Slot, Tensor, Tensor]]  # Where, what when loaded, what when not.
    versions: list[int]  # Of the tensors on the device: an operation that writes one changes its version.
    resident: bool
    users: int = 0


@dataclass
class Residence:
    """Owns the device memory. The tensors over it keep their addresses until the next `place`."""

    memory: Bytes
    exchange: Exchange
    device: torch.device
    on_change: OnChange
    pipeline: _native.Pipeline
    units: list[Unit] = field(default_factory=list)
    present: dict[int, _Present] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    blocks: list[Tensor] = field(default_factory=list)

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
        """Takes device memory for a placement, gives back what was there before, and starts the pipeline on it."""
        self.clear()
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
        for holder in self.exchange.holders.values():
            holder.outside.touched = False  # Whatever was edited until now is copied now.
        schedule = [(point.key, point.units) for point in points]
        self.pipeline.configure(ranges, placement.places, schedule, fallback, lookahead, self.stream())

    def _block(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def _settle(self, index: int, unit: Unit, block: Tensor, start: int, stays: bool) -> list[tuple[int, int, int]]:
        storage = block.untyped_storage()
        present = _Present([], [], [], stays)
        ranges = []
        for weight in unit.weights:
            own = storage[start : start + weight.span]
            ranges.append((weight.offset, own.data_ptr(), weight.span))
            start += weight.span
            for home in weight.homes:
                home.here = home.clothed(own)
                resting = home.here if stays else self._unloaded(home)
                home.resting = resting
                self.exchange.set_inside(home, resting)
                present.homes.append(home)
                present.versions.append(version_of(home.here))
                if not stays:
                    present.slots.extend((slot, home.here, resting) for slot in self.exchange.slots[home])
        self.present[index] = present
        return ranges

    def _unloaded(self, home: Home) -> Tensor:
        """What a forward finds while the weight is not on the device: its bytes on the host, as the device sees them."""
        storage = home.weight.reachable_storage
        return home.tensor if storage is None else home.clothed(storage)

    def clear(self) -> None:
        """Gives the device memory back, once nothing uses it any more."""
        self.pipeline.synchronize()
        if self.device.type == "cuda" and self.blocks:
            torch.cuda.synchronize(self.device)
        for present in self.present.values():
            for home in present.homes:
                home.here = None
                home.resting = self._unloaded(home)
                self.exchange.set_inside(home, home.resting)
            present.slots.clear()
        self.present = {}
        self.blocks = []
        if self.device.type == "cuda":
            # What the last placement and the traced forward left in PyTorch's cache is not of the sizes needed next.
            torch.cuda.empty_cache()

    def appear(self, index: int) -> None:
        """A unit was loaded for this thread: modules hold its tensors on the device from here on."""
        present = self.present[index]
        with self.lock:
            present.users += 1
            if present.users == 1:
                for slot, here, _ in present.slots:
                    slot.put(here)
        if not present.resident:
            for home in present.homes:
                if home.changed():
                    self._take_edit(index)
                    break

    def rest(self, index: int) -> None:
        """This thread needs the unit no longer."""
        present = self.present[index]
        if not present.resident:
            self._keep_writes(present)
        with self.lock:
            present.users -= 1
            if present.users == 0:
                for slot, _, resting in present.slots:
                    slot.put(resting)

    def begin(self) -> None:
        """Before a forward: edits of what stays on the device, and of what was asked for since the last forward."""
        for index, present in self.present.items():
            if present.resident and any(home.changed() for home in present.homes):
                self._take_edit(index)
        touched = [holder for holder in self.exchange.holders.values() if holder.outside.touched]
        if touched:
            for holder in touched:
                for home, tensor in holder.exchanged():
                    self._take_exchange(home, tensor)
            homes = {home for holder in touched for home in holder.homes.values()}
            for holder in touched:
                holder.outside.touched = False
            for index, present in self.present.items():
                if not homes.isdisjoint(present.homes):
                    if any(home.changed() for home in present.homes):
                        self._take_edit(index)
                    else:
                        self.pipeline.reload(index, self.stream())

    def end(self) -> None:
        """After a forward: what it wrote to weights that stay on the device is their value from now on."""
        for present in self.present.values():
            if present.resident:
                self._keep_writes(present)

    def accept(self) -> None:
        """Edits made in place are what the weights are from now on."""
        for index, present in self.present.items():
            if any(home.changed() for home in present.homes):
                self._upload(index)

    def _take_edit(self, index: int) -> None:
        if self.on_change == "error":
            names = [home.name for home in self.present[index].homes if home.changed()]
            raise RuntimeError(
                f"{', '.join(names)} changed after memlab.page: an edit in place, or load_state_dict. Say "
                'memlab.page(..., on_change="upload") to have edits taken to the device, model.memlab.refresh() to take '
                "this one, or unpage the model before editing it."
            )
        self._upload(index)

    def _take_exchange(self, home: Home, tensor: Any) -> None:
        """A module was given another Parameter for this one."""
        if self.on_change == "error" or not isinstance(tensor, type(home.tensor)) or len(home.places) > 1:
            raise RuntimeError(
                f"{home.name} was exchanged for another tensor, or removed, after memlab.page: unpage the model before "
                'changing what it is made of (on_change="upload" takes tensors of the same kind that are not shared)'
            )
        home.tensor = tensor

    @torch.no_grad()
    def _upload(self, index: int) -> None:
        for home in self.present[index].homes:
            if home.tensor.data_ptr() != home.address:  # It was given other memory: back into the arena with it.
                source = home.tensor.detach()
                assert home.weight.in_arena is not None
                view = home.over(home.weight.in_arena)
                if source.shape != view.shape or source.dtype != view.dtype:
                    raise RuntimeError(
                        f"{home.name} was {tuple(view.shape)} of {view.dtype} when the model was paged, and is "
                        f"{tuple(source.shape)} of {source.dtype} now: unpage the model before changing shapes or dtypes"
                    )
                view.copy_(source)
                with torch.inference_mode(False):
                    home.tensor.data = view
            home.remember()
        self.pipeline.reload(index, self.stream())

    @torch.no_grad()
    def _keep_writes(self, present: _Present) -> None:
        for position, home in enumerate(present.homes):
            assert home.here is not None
            version = version_of(home.here)
            if version != present.versions[position]:
                present.versions[position] = version
                home.tensor.copy_(home.here)
                home.remember()

    def bandwidth(self, wanted: int) -> float:
        """Bytes a second that copies to the device make, measured."""
        nbytes = min(max(wanted, 1 << 20), self.memory.arena.nbytes, 256 << 20)
        target = self._block(nbytes)
        return self.pipeline.bandwidth(target.data_ptr(), nbytes, self.stream())

    def counters(self) -> dict[str, Any]:
        return self.pipeline.counters()
