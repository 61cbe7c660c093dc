"""Losses that a GPU computes, read once they are complete, without waiting for the GPU."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

# Losses per block of pinned memory.
_TOGETHER = 64
_OF_PARENTS: list[dict[str, Any]] = []


class _Waiting(NamedTuple):
    """Losses on their way to the host, and the callback for when they have arrived."""

    there: torch.cuda.Event
    values: list[tuple[Tensor, int]]
    write: Callable[[float | None], None]


class PendingLosses:
    """Losses, some of which are still being computed.

    >>> late, written = PendingLosses(), []
    >>> late.add([(torch.tensor(1.0), 4), (torch.tensor(4.0), 8)], written.append)
    >>> late.add([], written.append)
    >>> written
    [3.0, None]
    """

    def __init__(self) -> None:
        self._forget()
        self._ends_with_process = False

    def add(self, losses: Sequence[tuple[Tensor, int]], write: Callable[[float | None], None]) -> None:
        """Calls `write` with the sample-weighted mean of losses: now, if they are on the host, otherwise in a later `poll`.
        Calls it with None if `losses` is empty."""
        device = next((loss.device for loss, _ in losses if loss.device.type == "cuda"), None)
        if device is None:
            write(_mean([(loss.detach(), samples) for loss, samples in losses]))
            return
        if not self._ends_with_process:
            self._ends_with_process = True
            atexit.register(self._finish)
            os.register_at_fork(after_in_child=self._forget)
        values = []
        for loss, samples in losses:
            place = self._place()
            place.copy_(loss.detach().reshape(()), non_blocking=True)
            values.append((place, samples))
        there = torch.cuda.Event()
        there.record(torch.cuda.current_stream(device))
        self._waiting.append(_Waiting(there, values, write))

    def poll(self) -> None:
        """Writes the losses that have arrived, in their order. Does not wait."""
        if self._waiting and self._lock.acquire(blocking=False):
            try:
                while self._waiting and self._waiting[0].there.query():
                    self._write(self._waiting.popleft())
            except RuntimeError:  # An earlier operation has failed; PyTorch reports it to the program.
                self._waiting.clear()
            finally:
                self._lock.release()

    def _finish(self) -> None:
        """Writes the remaining losses when the process ends, and waits for them."""
        with contextlib.suppress(RuntimeError), self._lock:  # As in `poll`.
            while self._waiting:
                self._waiting[0].there.synchronize()
                self._write(self._waiting.popleft())

    def _forget(self) -> None:
        """Resets the state, at the start and in a forked child. Waiting losses are the parent's. The child keeps them, since
        only the parent may free CUDA's events and pinned memory."""
        _OF_PARENTS.append(vars(self).copy())
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._free: list[Tensor] = []

    def _place(self) -> Tensor:
        if not self._free:
            self._free += torch.empty(_TOGETHER, dtype=torch.float64, device="cpu", pin_memory=True).unbind()
        return self._free.pop()

    def _write(self, waiting: _Waiting) -> None:
        waiting.write(_mean(waiting.values))
        self._free += [place for place, _ in waiting.values]


def _mean(losses: Sequence[tuple[Tensor, int]]) -> float | None:
    if len(losses) == 1:
        return float(losses[0][0])
    samples = sum(samples for _, samples in losses)
    return sum(float(loss) * samples for loss, samples in losses) / samples if samples else None
