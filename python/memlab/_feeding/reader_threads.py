"""Threads that read, directly or each through its worker process. They stay from epoch to epoch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from memlab._feeding.reading import Chunk, ChunkRead, SampleReaders
from memlab._feeding.slots import Ring, Slot
from memlab._feeding.worker import WorkerProcess

_PATIENCE_SECONDS = 1.0


class ChunkReader(Protocol):
    """Reads chunks of samples into slots."""

    def read(self, chunk: Chunk, slot: Slot) -> ChunkRead: ...

    def interrupt(self) -> None:
        """Ends a `read` that another thread waits for, if possible."""

    def close(self) -> None:
        """Called when no thread reads any more."""


class InThreadReader:
    """Reads in the calling thread."""

    def __init__(self, readers: SampleReaders) -> None:
        self._readers = readers

    def read(self, chunk: Chunk, slot: Slot) -> ChunkRead:
        return self._readers.read(chunk, (slot.inputs, slot.outputs))

    def interrupt(self) -> None:
        pass  # A thread cannot be interrupted.

    def close(self) -> None:
        pass


Task = Callable[[ChunkReader], None]


class ReaderThreads:
    """One thread per worker. Runs tasks in the order in which they are given, across epochs."""

    def __init__(self, readers: SampleReaders, ring: Ring, workers: int, processes: bool) -> None:
        self.readers: list[ChunkReader] = []
        self._threads: list[threading.Thread] = []
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        try:
            for _ in range(workers):
                self.readers.append(WorkerProcess(readers, ring) if processes else InThreadReader(readers))
        except BaseException:
            self.close()
            raise
        self._threads = [
            threading.Thread(target=_work, args=(self._tasks, reader), name="memlab-feeder", daemon=True)
            for reader in self.readers
        ]
        for thread in self._threads:
            thread.start()

    def do(self, task: Task) -> None:
        """Lets the next free reader run a task, which must not raise."""
        self._tasks.put(task)

    def close(self) -> None:
        """Ends threads and processes, after their current tasks. Does not wait for slow readers."""
        for _ in self._threads:
            self._tasks.put(None)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for thread, reader in zip(self._threads, self.readers, strict=False):
            thread.join(timeout=max(deadline - time.monotonic(), 0))
            if thread.is_alive():
                reader.interrupt()
        for reader in self.readers:
            reader.close()


def _work(tasks: SimpleQueue[Task | None], reader: ChunkReader) -> None:
    while (task := tasks.get()) is not None:
        task(reader)
        del task  # A task refers to its epoch, and so to a batch.
