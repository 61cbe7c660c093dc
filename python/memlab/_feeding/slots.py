"""The memory of the batches: a fixed number of slots, which are filled, lent, and filled again.

A slot that is lent comes back when the last array or tensor that shows it is gone, so no batch is overwritten while
somebody has it. A loop that keeps more batches than there are slots keeps those for good: the oldest slot becomes its own,
and the ring takes another one, so the ring never waits for a loop that waits for the ring.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memlab._feeding.layout import BatchLayout


class Slot:
    """Memory for one batch, which worker processes can map too if there is a descriptor."""

    def __init__(self, number: int, layout: BatchLayout, shared: bool) -> None:
        self.number = number
        self.nbytes = layout.nbytes
        self.descriptor = -1
        if shared:  # Not in /dev/shm, which containers make small.
            self.descriptor = os.memfd_create(f"memlab-feeder-{number}", os.MFD_CLOEXEC)
            weakref.finalize(self, os.close, self.descriptor)
            os.ftruncate(self.descriptor, layout.nbytes)
            self.memory = mmap.mmap(self.descriptor, layout.nbytes)
        else:
            self.memory = mmap.mmap(-1, layout.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.inputs, self.outputs = layout.arrays(self.memory)
        # Whoever takes the ticket of a lent slot says what becomes of it: free again, or the borrower's.
        self.ticket: deque[None] = deque()

    @property
    def address(self) -> int:
        return int(np.frombuffer(self.memory, dtype=np.uint8).ctypes.data)


class Ring:
    """The slots. `free` has those that can be filled."""

    def __init__(self, layout: BatchLayout, count: int, shared: bool) -> None:
        self.layout = layout
        self.count = count
        self.free: SimpleQueue[Slot | None] = SimpleQueue()  # Safe to put into from the callback of a weak reference.
        self._shared = shared
        self._loans: dict[int, weakref.ref[_Loan]] = {}  # The last loan of each slot, the oldest first.
        self._made = 0
        self._alive: dict[int, Slot] = {}
        for _ in range(count):
            self._add()

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the slots that there are now."""
        return tuple(self._alive)

    @property
    def slots(self) -> list[Slot]:
        return list(self._alive.values())

    def lend(self, slot: Slot, rows: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The first rows of a filled slot. It is free again when nobody has any part of them."""
        loan = _Loan(slot)
        slot.ticket.append(None)
        free = self.free

        def returned(_: object) -> None:
            try:
                slot.ticket.pop()
            except IndexError:
                return  # It is the borrower's.
            free.put(slot)

        self._loans.pop(slot.number, None)
        self._loans[slot.number] = weakref.ref(loan, returned)
        return _Rows.of(slot.inputs[:rows], loan), _Rows.of(slot.outputs[:rows], loan)

    def give_away_oldest(self) -> None:
        """Leaves the slot that was lent first to its borrower, and makes another one in its place."""
        for number in list(self._loans):
            try:
                self._alive[number].ticket.pop()
            except IndexError:
                continue  # It has come back.
            del self._loans[number], self._alive[number]
            self._add()
            return

    def all_lent(self) -> bool:
        """Whether every slot is with a borrower."""
        return all((loan := self._loans.get(number)) is not None and loan() is not None for number in self._alive)

    def _add(self) -> None:
        slot = Slot(self._made, self.layout, self._shared)
        self._made += 1
        self._alive[slot.number] = slot
        self.free.put(slot)


class _Loan:
    """Lives as long as an array or tensor that shows a lent slot."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot


class _Rows:
    """NumPy makes what this returns the base of all arrays that show the same memory."""

    def __init__(self, rows: NDArray[Any], loan: _Loan) -> None:
        self.__array_interface__ = rows.__array_interface__
        self.loan = loan

    @staticmethod
    def of(rows: NDArray[Any], loan: _Loan) -> NDArray[Any]:
        return np.asarray(_Rows(rows, loan))
