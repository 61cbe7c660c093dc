"""The memory of batches: a fixed number of slots, which are filled, lent, and filled again.

A lent slot returns when the last array or tensor over it is gone, so a batch in use is never overwritten. A loop that keeps
more batches than the ring has slots keeps them permanently: the borrower gets the oldest slot, and the ring allocates
another one. So ring and loop never wait for each other.
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
    """Memory for one batch. With a descriptor, worker processes can map it too."""

    def __init__(self, number: int, layout: BatchLayout, shared: bool) -> None:
        self.number = number
        self.nbytes = layout.nbytes
        self.descriptor = -1
        if shared:  # Not in /dev/shm, which is small in containers.
            self.descriptor = os.memfd_create(f"memlab-feeder-{number}", os.MFD_CLOEXEC)
            weakref.finalize(self, os.close, self.descriptor)
            os.ftruncate(self.descriptor, layout.nbytes)
            self.memory = mmap.mmap(self.descriptor, layout.nbytes)
        else:
            self.memory = mmap.mmap(-1, layout.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.inputs, self.outputs = layout.arrays(self.memory)
        # The taker of a lent slot's ticket decides its future: free again, or the borrower's.
        self.ticket: deque[None] = deque()

    @property
    def address(self) -> int:
        return int(np.frombuffer(self.memory, dtype=np.uint8).ctypes.data)


class Ring:
    """The slots. `free` contains those that can be filled."""

    def __init__(self, layout: BatchLayout, count: int, shared: bool) -> None:
        self.layout = layout
        self.count = count
        self.free: SimpleQueue[Slot | None] = SimpleQueue()  # Callbacks of weak references can safely put into it.
        self._shared = shared
        self._loans: dict[int, weakref.ref[_Loan]] = {}  # The last loan of each slot, the oldest first.
        self._made = 0
        self._alive: dict[int, Slot] = {}
        for _ in range(count):
            self._add()

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the current slots."""
        return tuple(self._alive)

    @property
    def slots(self) -> list[Slot]:
        return list(self._alive.values())

    def lend(self, slot: Slot, rows: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Lends the first rows of a filled slot. The slot is free again when no part of them is referenced."""
        loan = _Loan(slot)
        slot.ticket.append(None)
        free = self.free

        def returned(_: object) -> None:
            try:
                slot.ticket.pop()
            except IndexError:
                return  # The slot belongs to the borrower.
            free.put(slot)

        self._loans.pop(slot.number, None)
        self._loans[slot.number] = weakref.ref(loan, returned)
        return _Rows.of(slot.inputs[:rows], loan), _Rows.of(slot.outputs[:rows], loan)

    def give_away_oldest(self) -> None:
        """Gives the slot that was lent first to its borrower, and allocates another one."""
        for number in list(self._loans):
            try:
                self._alive[number].ticket.pop()
            except IndexError:
                continue  # The slot has returned.
            del self._loans[number], self._alive[number]
            self._add()
            return

    def all_lent(self) -> bool:
        """True if all slots are lent."""
        return all((loan := self._loans.get(number)) is not None and loan() is not None for number in self._alive)

    def _add(self) -> None:
        slot = Slot(self._made, self.layout, self._shared)
        self._made += 1
        self._alive[slot.number] = slot
        self.free.put(slot)


class _Loan:
    """Lives as long as any array or tensor over a lent slot."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot


class _Rows:
    """The base that NumPy gives to all arrays over the same memory."""

    def __init__(self, rows: NDArray[Any], loan: _Loan) -> None:
        self.__array_interface__ = rows.__array_interface__
        self.loan = loan

    @staticmethod
    def of(rows: NDArray[Any], loan: _Loan) -> NDArray[Any]:
        return np.asarray(_Rows(rows, loan))
