"""A worker process, which reads chunks into batches in memory shared with the feeder's process.

The feeder sends `_Map` and a descriptor for each slot that is new to the process, and `_Read` for each chunk. The process
answers each `_Read`. The identities are sent with the chunks, so the process needs no list of them.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

from memlab._feeding.errors import SampleError, WorkerDied
from memlab._feeding.layout import BatchLayout
from memlab._feeding.reading import Chunk, ChunkRead, SampleReaders
from memlab._feeding.slots import Ring, Slot

_SPAWN = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class _Map:
    slot: int


@dataclass(frozen=True)
class _Read:
    chunk: Chunk
    slot: int
    slots: tuple[int, ...]
    """The current slots: the process forgets all others, since borrowers have kept them."""


@dataclass(frozen=True)
class _Failure:
    """A `SampleError` in picklable form: pickled directly, it would lose its cause."""

    arguments: tuple[Any, ...]
    cause: BaseException | None
    traceback: str

    @staticmethod
    def of(error: SampleError) -> _Failure:
        cause = error.__cause__
        try:
            pickle.loads(pickle.dumps(cause))
        except Exception:
            cause = None
        return _Failure(error.args, cause, "".join(traceback.format_exception(error.__cause__)))

    def error(self) -> SampleError:
        error = SampleError(*self.arguments)
        there = _WorkerTraceback(self.traceback)
        error.__cause__ = self.cause or there
        if self.cause is not None:
            self.cause.__cause__ = there
        return error


class _WorkerTraceback(Exception):
    """The traceback in the worker process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class WorkerProcess:
    """The feeder's side of one worker process."""

    def __init__(self, readers: SampleReaders, ring: Ring) -> None:
        self._readers = readers
        self._ring = ring
        self._known: set[int] = set()
        self._start()

    def _start(self) -> None:
        self._connection, child = _SPAWN.Pipe()
        self._process = _SPAWN.Process(
            target=_serve, args=(child, self._readers, self._ring.layout), name="memlab-feeder", daemon=True
        )
        try:
            self._process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(
                f"a reader cannot be sent to a worker process ({error}): use functions of a module, or processes=False"
            ) from error
        finally:
            child.close()
        self._known.clear()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def read(self, chunk: Chunk, slot: Slot) -> ChunkRead:
        """Lets the process read a chunk.

        Raises:
            SampleError: as `SampleReaders.read`.
            WorkerDied: the process ended; the next call starts another one.
        """
        if self._process.exitcode is not None:
            self._start()
        self._known &= set(self._ring.numbers)
        try:
            if slot.number not in self._known:
                self._connection.send(_Map(slot.number))
                send_handle(self._connection, slot.descriptor, self.pid)
                self._known.add(slot.number)
            self._connection.send(_Read(chunk, slot.number, self._ring.numbers))
            answer = self._connection.recv()
        except (EOFError, OSError):
            self._process.join()
            names = ", ".join(repr(identity) for identity in chunk.inputs)
            raise WorkerDied(
                f"a worker process ended with exit code {self._process.exitcode} while it read {names}"
            ) from None
        if isinstance(answer, _Failure):
            raise answer.error()
        assert isinstance(answer, ChunkRead)
        return answer

    def interrupt(self) -> None:
        """Ends the process in the middle of a sample."""
        self._process.kill()

    def close(self) -> None:
        """Ends the process, which waits for requests."""
        self._connection.close()
        self._process.join(timeout=1)
        if self._process.exitcode is None:  # It is still starting, or has threads that do not end.
            self._process.kill()
            self._process.join()


def _serve(connection: Connection, readers: SampleReaders, layout: BatchLayout) -> None:
    """The main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The feeder handles Ctrl-C; this process ends with its connection.
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # Other processes use the other cores.
    slots: dict[int, Any] = {}
    with contextlib.suppress(EOFError, OSError):
        while True:
            request = connection.recv()
            if isinstance(request, _Map):
                descriptor = recv_handle(connection)
                slots[request.slot] = layout.arrays(mmap.mmap(descriptor, layout.nbytes))
                os.close(descriptor)
                continue
            for number in slots.keys() - set(request.slots):
                del slots[number]
            connection.send(_answer(readers, request.chunk, slots[request.slot]))


def _answer(readers: SampleReaders, chunk: Chunk, rows: Any) -> ChunkRead | _Failure:
    try:
        return readers.read(chunk, rows)
    except SampleError as error:
        return _Failure.of(error)
