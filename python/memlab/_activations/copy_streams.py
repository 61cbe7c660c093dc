"""Copies of activations to host memory and back, with one stream per device."""

from __future__ import annotations

import os

import torch

from memlab import _native
from memlab._tools.host_memory import available_host_memory
from memlab._tools.messages import warn_once

# Host memory left to the rest of the machine.
_SPARE_ON_HOST = 1 << 30
_COPY_STREAMS: dict[torch.device, CopyStream] = {}
# A forked child has none of the copying threads, and creates new streams. (Those of its parent stay, unused.)
_COPY_STREAMS_OF_PARENTS: list[dict[torch.device, CopyStream]] = []


def copied_nbytes() -> int:
    """Total bytes copied to the host so far, from all devices."""
    return sum(copy_stream.copied_nbytes for copy_stream in tuple(_COPY_STREAMS.values()))


def _after_fork() -> None:
    _COPY_STREAMS_OF_PARENTS.append(dict(_COPY_STREAMS))
    _COPY_STREAMS.clear()


os.register_at_fork(after_in_child=_after_fork)


class CopyStream:
    """The copy stream of a device, and the host memory that it uses. It lives as long as the process."""

    def __init__(self, device: torch.device) -> None:
        self.native = _native.OffloadStream(device.index if device.type == "cuda" else None)
        self._refused = False
        self._bytes_per_second: float | None = None
        #: Total bytes copied to the host.
        self.copied_nbytes = 0

    @staticmethod
    def of(device: torch.device) -> CopyStream:
        copy_stream = _COPY_STREAMS.get(device)
        if copy_stream is None:
            copy_stream = _COPY_STREAMS[device] = CopyStream(device)
        return copy_stream

    def save(self, storage: torch.UntypedStorage, stream: int) -> _native.HostCopy | None:
        """Begins to copy a storage to the host; None if the host has no memory for it, which is reported once."""
        nbytes = storage.nbytes()
        growth = self.native.growth(nbytes)
        if growth and not self._grow(growth):
            return None
        try:
            copy = self.native.save(storage.data_ptr(), nbytes, stream)
        except MemoryError:  # Another thread has taken the memory meanwhile.
            return None
        self.copied_nbytes += nbytes
        return copy

    def measure(self) -> None:
        """Begins to measure the speed of copies, unless it is known."""
        self.native.timed(self._bytes_per_second is None)

    def bytes_per_second(self) -> float | None:
        """The speed of copies; None if no copy was made since `measure`. Waits for the measured copies."""
        if self._bytes_per_second is None:
            self._bytes_per_second = self.native.bytes_per_second()
        self.native.timed(False)
        return self._bytes_per_second

    def _grow(self, nbytes: int) -> bool:
        if self._refused:
            return False
        why = None
        try:
            if available_host_memory() - _SPARE_ON_HOST < nbytes:
                why = "no host memory is left to use"
            else:
                self.native.grow(nbytes)
        except (OSError, MemoryError) as error:
            why = str(error)
        if why is not None:
            self._refused = True
            warn_once(
                f"offload_activations: {why}; {_native.format_size(self.native.host_nbytes)} are on the host, further "
                "activations stay on the GPU"
            )
        return why is None
