"""The resources of a feeder, kept from epoch to epoch: slots, reader threads, and copies to the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memlab._feeding.budget import HostBudget, ReadingRoom
from memlab._feeding.filling import EpochReads, Filling
from memlab._feeding.reader_threads import InThreadReader, ReaderThreads
from memlab._feeding.reading import SampleReaders
from memlab._feeding.slots import Ring
from memlab._feeding.sources import DeviceCopies, DeviceSource, HostSource, Source

if TYPE_CHECKING:
    import torch


class Engine:
    """Allocates no memory, and starts no thread, before the first epoch begins."""

    def __init__(
        self,
        budget: HostBudget,
        batch_size: int,
        readers: SampleReaders,
        workers: int,
        processes: bool,
        device: torch.device | None,
        most_slots: int | None,
    ) -> None:
        self.layout = budget.layout(batch_size)
        self.reading = budget.readers(batch_size, workers)
        self.slots = budget.slots(batch_size, workers, 2 * workers + 2 if most_slots is None else most_slots)
        self.host_bytes = self.slots * self.layout.nbytes + self.reading * budget.read_bytes
        self._room = ReadingRoom(budget.limit - self.slots * self.layout.nbytes)
        self._readers = readers
        # More workers could not read at a time, but each would keep the memory of its last sample.
        self._workers = min(workers, self.reading)
        self._processes = processes and workers > 0
        self._device = device
        self._ring: Ring | None = None
        self._reader_threads: ReaderThreads | None = None
        self._copies: DeviceCopies | None = None
        self._source: Source | None = None

    def chunk_reads(self, batch_reads: int) -> int:
        """Samples of a batch that one worker reads: few enough that the slots keep all workers busy."""
        pieces = max(1, -(-2 * self._workers // self.slots))
        return max(1, -(-batch_reads // pieces))

    def begin(self, epoch_reads: EpochReads) -> Source:
        """Ends the previous epoch, and starts to read the next."""
        self.end()
        if self._ring is None:
            self._ring = Ring(self.layout, self.slots, shared=self._processes)
        if self._reader_threads is None and self._workers > 0:
            self._reader_threads = ReaderThreads(self._readers, self._ring, self._workers, self._processes)
        on_card = self._device is not None and self._device.type != "cpu"
        if self._copies is None and self._device is not None and on_card:
            self._copies = DeviceCopies(self._device, self._ring)
        filling = Filling(epoch_reads, self._ring, self._room, InThreadReader(self._readers), self._reader_threads)
        if self._copies is None:
            self._source = HostSource(filling, tensors=self._device is not None)
        else:
            self._source = DeviceSource(filling, self._copies, background=self._reader_threads is not None)
        return self._source

    def runs(self, source: Source) -> bool:
        """True if this source belongs to the current epoch."""
        return self._source is source

    def end(self) -> None:
        """Ends the current epoch, after the samples that are being read."""
        if self._source is not None:
            self._source.stop()
            self._source.join()
            self._source = None

    def close(self) -> None:
        """Ends everything and frees the slots. Does not wait for readers in threads."""
        if self._source is not None:
            self._source.stop()
        if self._reader_threads is not None:
            self._reader_threads.close()
        if self._copies is not None:
            self._copies.close()
        self._source = self._reader_threads = self._copies = self._ring = None
