"""Copies of activations to host memory and back, one stream of them for each device."""

from __future__ import annotations

import os

import torch

from memlab import _native
from memlab._tools.host_room import host_room
from memlab._tools.say import say_once

# What is left to the rest of the machine.
_SPARE_ON_HOST = 1 << 30
_LANES: dict[torch.device, DeviceLane] = {}
# A forked child has none of the threads that copy, and makes lanes of its own. (Those of its parent stay, unused.)
_LANES_OF_PARENTS: list[dict[torch.device, DeviceLane]] = []


def copied_nbytes() -> int:
    """What was ever copied to the host, of all devices."""
    return sum(lane.copied_nbytes for lane in tuple(_LANES.values()))


def _after_fork() -> None:
    _LANES_OF_PARENTS.append(dict(_LANES))
    _LANES.clear()


os.register_at_fork(after_in_child=_after_fork)


class DeviceLane:
    """The stream of copies of a device, and the host memory that they use. It lives as long as the process."""

    def __init__(self, device: torch.device) -> None:
        self.native = _native.Lane(device.index if device.type == "cuda" else None)
        self._refused = False
        self._bytes_per_second: float | None = None
        #: All that was ever copied to the host.
        self.copied_nbytes = 0

    @staticmethod
    def of(device: torch.device) -> DeviceLane:
        lane = _LANES.get(device)
        if lane is None:
            lane = _LANES[device] = DeviceLane(device)
        return lane

    def save(self, storage: torch.UntypedStorage, stream: int) -> _native.HostCopy | None:
        """Begins to copy a storage to the host; None if the host has no memory for it, which is said once."""
        nbytes = storage.nbytes()
        growth = self.native.growth(nbytes)
        if growth and not self._grow(growth):
            return None
        try:
            copy = self.native.save(storage.data_ptr(), nbytes, stream)
        except MemoryError:  # Another thread has taken the place meanwhile.
            return None
        self.copied_nbytes += nbytes
        return copy

    def measure(self) -> None:
        """Begins to measure how fast copies are, unless that is known."""
        self.native.timed(self._bytes_per_second is None)

    def bytes_per_second(self) -> float | None:
        """How fast copies are; None if there were none since `measure`. Waits for those."""
        if self._bytes_per_second is None:
            self._bytes_per_second = self.native.bytes_per_second()
        self.native.timed(False)
        return self._bytes_per_second

    def _grow(self, nbytes: int) -> bool:
        if self._refused:
            return False
        why = None
        try:
            if host_room() - _SPARE_ON_HOST < nbytes:
                why = "the host has no more memory to spare"
            else:
                self.native.grow(nbytes)
        except (OSError, MemoryError) as error:
            why = str(error)
        if why is not None:
            self._refused = True
            say_once(
                f"offload_activations: {why}; beside the {_native.format_size(self.native.host_nbytes)} on the host, "
                "activations stay on the GPU"
            )
        return why is None
