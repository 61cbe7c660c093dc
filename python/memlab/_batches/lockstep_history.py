"""Figures of earlier batches in lockstep, for the next ones: the bytes saved, and the share that may stay on the GPU."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from memlab._activations.forward_profile import ForwardProfile
from memlab._activations.offload_schedule import OffloadSchedule
from memlab._batches.sizing import room_on

# Share of the memory left free by a batch that the next one may take, since its peak may be higher.
_FREE_SHARE = 0.8
# Divides the free memory: one part for copies to the host, and one for copies back.
_PENDING_DIVISOR = 16
# Kinds of batches with a history, for each model.
_MAX_HISTORIES = 64
_ALL: WeakKeyDictionary[nn.Module, OrderedDict[Any, LockstepHistory]] = WeakKeyDictionary()


class MicrobatchHistory:
    """The forwards of a micro-batch, one in each batch."""

    def __init__(self, pending_nbytes: int) -> None:
        """`pending_nbytes`: bytes that may be on their way to the host, and as many on their way back."""
        self._pending_nbytes = pending_nbytes
        #: Bytes that stay on the device.
        self.keep_nbytes = 0
        #: Bytes saved by autograd that could be offloaded.
        self.saved_nbytes = 0
        #: Storages that its last backward read from the host; None: a meeting with the other threads.
        self.order: list[Any] = []

    #: None: the mode sees the operations of each forward.
    resident: dict[Any, int] | None = None

    def beginning_with(self, _signature: Any) -> MicrobatchHistory:
        """This history: a micro-batch has only one kind of forward."""
        return self

    def closed(self, first_saved: Any, resident_nbytes: int | None) -> None:
        """Does nothing: the mode sees the operations of the next forward as well."""

    def begin(self) -> tuple[OffloadSchedule, ForwardProfile | None]:
        """The schedule of a forward. The tensors made last are needed first, and stay."""
        order, self.order = self.order, []
        leaving = max(self.saved_nbytes - self.keep_nbytes, 0)
        schedule = OffloadSchedule(
            pending_nbytes=self._pending_nbytes,
            ahead_nbytes=self._pending_nbytes,
            keep_nbytes=self.keep_nbytes,
            offload_nbytes=leaving,
            order=order,
        )
        return schedule, None

    def ended(self, operations: int, *, has_saved: bool, offered_nbytes: int) -> bool:
        """Records the end of a forward: `offered_nbytes` of its tensors could have been offloaded."""
        self.saved_nbytes = offered_nbytes
        return False


class LockstepHistory:
    """The history of a model's batches that were cut into the same pieces."""

    def __init__(self, device: torch.device, pieces: int) -> None:
        #: Bytes that one thread may have on their way to the host, and as many on their way back.
        self.pending_nbytes = 0
        self._device = device
        # Bytes that may be allocated on the device.
        self._allowed: int | None = None
        self._pieces = pieces
        #: The history of each thread.
        self.histories: list[MicrobatchHistory] = []
        #: True once a whole batch was seen to fit on the device.
        self.fits = False

    @staticmethod
    def of(
        model: nn.Module, device: torch.device, memory: int | None, pieces: Sequence[range], form: str = ""
    ) -> LockstepHistory:
        """The history of a model's batches of this form within this memory (None: all free memory)."""
        known = _ALL.setdefault(model, OrderedDict())
        autocast = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
        key = (device, memory, len(pieces), len(pieces[0]), form, model.training, autocast)
        lockstep_history = known.pop(key, None) or LockstepHistory(device, len(pieces))
        if len(known) >= _MAX_HISTORIES:
            known.popitem(last=False)
        known[key] = lockstep_history
        return lockstep_history

    def begin(self, memory: int | None) -> int:
        """Begins a batch whose threads spill. Returns the bytes that they may take."""
        room = _room(self._device, memory)
        if self._device.type == "cuda":
            self._allowed = torch.cuda.memory_allocated(self._device) + room
            torch.cuda.reset_peak_memory_stats(self._device)
        if not self.histories:
            self.pending_nbytes = room // _PENDING_DIVISOR
            self.histories = [MicrobatchHistory(self.pending_nbytes) for _ in range(self._pieces)]
        return room

    def ended(self, host_nbytes: int) -> None:
        """Ends a batch that spilled: computes how much more of it can stay on the device.

        `host_nbytes`: the peak of the bytes that waiting threads had on the host.
        """
        if self._allowed is None:
            return
        saved = sum(history.saved_nbytes for history in self.histories)
        kept = sum(min(history.keep_nbytes, history.saved_nbytes) for history in self.histories)
        spare = int((self._allowed - torch.cuda.max_memory_allocated(self._device)) * _FREE_SHARE)
        self.fits = saved - kept + host_nbytes <= spare
        keep = max(kept + spare, 0)
        for history in self.histories:
            history.keep_nbytes = keep * history.saved_nbytes // max(saved, 1)

    def failed(self) -> bool:
        """Records that a batch ran out of memory. Returns True if the next one will take less."""
        is_less = self.fits or any(history.keep_nbytes for history in self.histories)
        self.fits = False
        for history in self.histories:
            history.keep_nbytes = 0
        return is_less


def _room(device: torch.device, memory: int | None) -> int:
    """Bytes that a batch may take on a device; 0 for the CPU, since spilling goes to the same memory."""
    return room_on(device, memory) if device.type == "cuda" else 0


def forget_lockstep_history(model: nn.Module) -> None:
    """Forgets the history of a model's batches."""
    _ALL.pop(model, None)
