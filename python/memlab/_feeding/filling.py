"""The batches of one epoch, in their order: their samples, slots and progress."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from memlab._feeding.budget import ReadingRoom
from memlab._feeding.identities import Identities
from memlab._feeding.reader_threads import ChunkReader, InThreadReader, ReaderThreads
from memlab._feeding.reading import Chunk
from memlab._feeding.slots import Ring, Slot


class Stopped(Exception):
    """The epoch was ended by the feeder."""


@dataclass(frozen=True)
class EpochReads:
    """The reads of an epoch."""

    inputs: Identities
    outputs: Identities
    order: NDArray[np.int64]
    """The numbers of the remaining samples."""
    seed: int
    epoch: int
    batch_reads: int
    """Samples in a batch."""
    chunk_reads: int
    """Samples that one reader reads one after the other."""
    one_read_count: int

    @property
    def batches(self) -> int:
        return -(-len(self.order) // self.batch_reads)

    def reads(self, batch: int) -> int:
        """Number of samples in a batch: the last one may be short."""
        return min(self.batch_reads, len(self.order) - batch * self.batch_reads)

    def chunks(self, batch: int) -> Iterator[Chunk]:
        first = batch * self.batch_reads
        for offset in range(0, self.reads(batch), self.chunk_reads):
            count = min(self.chunk_reads, self.reads(batch) - offset)
            indices = self.order[first + offset : first + offset + count]
            yield Chunk(
                first_row=offset * self.one_read_count,
                indices=indices.tolist(),
                inputs=self.inputs.at(indices),
                outputs=self.outputs.at(indices),
                seed=self.seed,
                epoch=self.epoch,
            )


@dataclass
class FilledBatch:
    """A batch that is being filled, or is full."""

    slot: Slot
    rows: int
    chunks_left: int = 0
    tensors: bool = False
    errors: dict[int, BaseException] = field(default_factory=dict)
    """Errors by row: the first one is raised."""
    told: bool = False
    """True once an error was raised: then the batch is read again."""


class Filling:
    """Fills the slots of the ring with the batches of an epoch, and returns them in order.

    With workers, a thread gives each free slot the next batch. Without workers, `take` reads.
    """

    def __init__(
        self,
        epoch_reads: EpochReads,
        ring: Ring,
        room: ReadingRoom,
        here: InThreadReader,
        reader_threads: ReaderThreads | None,
    ) -> None:
        self.epoch_reads = epoch_reads
        self.ring = ring
        self._room = room
        self._here = here
        self._reader_threads = reader_threads
        self._batches: dict[int, FilledBatch] = {}
        self._changed = threading.Condition()
        self._stopped = False
        self._thread: threading.Thread | None = None
        if reader_threads is not None:
            self._thread = threading.Thread(target=self._give_slots, name="memlab-feeder-slots", daemon=True)
            self._thread.start()

    def take(self, number: int) -> FilledBatch:
        """Waits for a batch and returns it, with its slot.

        Raises:
            SampleError, WorkerDied, NotEnoughCPURam: it could not be read. The next call reads it again.
            Stopped: the epoch was ended.
        """
        if self._reader_threads is None:
            return self._read_here(number)
        with self._changed:
            while True:
                if self._stopped:
                    raise Stopped
                batch = self._batches.get(number)
                if batch is not None and batch.chunks_left == 0:
                    if not batch.errors:
                        return self._batches.pop(number)
                    if not batch.told:
                        batch.told = True
                        raise batch.errors[min(batch.errors)]
                    self._start(number, batch.slot)
                elif batch is None and self.ring.all_lent():
                    self.ring.give_away_oldest()
                self._changed.wait()

    def stop(self) -> None:
        """Ends the epoch: `take` raises, and no more samples are read."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self.ring.free.put(None)

    def join(self) -> None:
        """Waits for the reads that still run after `stop`, and frees their slots."""
        if self._thread is not None:
            self._thread.join()
        with self._changed:
            while any(batch.chunks_left for batch in self._batches.values()):
                self._changed.wait()
        for batch in self._batches.values():
            self.ring.free.put(batch.slot)
        self._batches.clear()

    def _read_here(self, number: int) -> FilledBatch:
        slot = None
        while slot is None:  # A None left by `stop`.
            if self.ring.free.empty():
                self.ring.give_away_oldest()
            slot = self.ring.free.get()
        batch = FilledBatch(slot, self.epoch_reads.reads(number) * self.epoch_reads.one_read_count)
        try:
            for chunk in self.epoch_reads.chunks(number):
                batch.tensors |= self._read(self._here, chunk, batch)
        except BaseException:
            self.ring.free.put(slot)
            raise
        return batch

    def _give_slots(self) -> None:
        for number in range(self.epoch_reads.batches):
            slot = self.ring.free.get()
            while slot is None and not self._stopped:  # A None left by an earlier epoch.
                slot = self.ring.free.get()
            if self._stopped:
                if slot is not None:
                    self.ring.free.put(slot)
                return
            assert slot is not None
            self._start(number, slot)

    def _start(self, number: int, slot: Slot) -> None:
        """Gives the chunks of a batch to the reader threads."""
        assert self._reader_threads is not None
        chunks = list(self.epoch_reads.chunks(number))
        batch = FilledBatch(slot, self.epoch_reads.reads(number) * self.epoch_reads.one_read_count, len(chunks))
        with self._changed:
            self._batches[number] = batch
            self._changed.notify_all()
        for chunk in chunks:
            self._reader_threads.do(lambda reader, chunk=chunk: self._fill(reader, chunk, batch))  # type: ignore[misc]

    def _fill(self, reader: ChunkReader, chunk: Chunk, batch: FilledBatch) -> None:
        error, tensors = None, False
        try:
            if not self._stopped:
                tensors = self._read(reader, chunk, batch)
        except BaseException as raised:
            error = raised
        with self._changed:
            if error is not None:
                batch.errors[chunk.first_row] = error
            batch.tensors |= tensors
            batch.chunks_left -= 1
            if batch.chunks_left == 0:
                self._changed.notify_all()

    def _read(self, reader: ChunkReader, chunk: Chunk, batch: FilledBatch) -> bool:
        taken, sample_bytes = self._room.enter(), 0
        try:
            read = reader.read(chunk, batch.slot)
            sample_bytes = read.sample_bytes
        finally:
            self._room.leave(taken, sample_bytes)
        return read.tensors
