"""What batches in lockstep have taught for the next ones: how much they save, how much of it may stay on the GPU."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from memlab._activations.learning import Lesson
from memlab._activations.plans import Plan
from memlab._batches.sizing import room_on

# How much of the memory that a batch has left free the next one may take: more may be alive at once then.
_BOLDNESS = 0.8
# Of the memory that is free: for what is on its way to the host, and for what is on its way back, each.
_FLYING = 16
# Of how many kinds of batches something is known, for each model.
_MOST = 64
_ALL: WeakKeyDictionary[nn.Module, OrderedDict[Any, Experience]] = WeakKeyDictionary()


class StrandHistory:
    """The forwards of a micro-batch, one in each batch."""

    def __init__(self, flying: int) -> None:
        """`flying`: bytes that may be on their way to the host, and back."""
        self._flying = flying
        #: Bytes that stay on the device.
        self.keep_nbytes = 0
        #: Bytes that autograd has saved and that could have been moved.
        self.saved_nbytes = 0
        #: What its last backward read from the host; None: where it met the others.
        self.order: list[Any] = []

    def beginning_with(self, _signature: Any) -> StrandHistory:
        """There is one kind of forward."""
        return self

    def begin(self) -> tuple[Plan, Lesson | None]:
        """The plan for a forward. What is made last is needed first, and stays."""
        order, self.order = self.order, []
        leaving = max(self.saved_nbytes - self.keep_nbytes, 0)
        plan = Plan(
            flying_nbytes=self._flying,
            ahead_nbytes=self._flying,
            keep_nbytes=self.keep_nbytes,
            offload_nbytes=leaving,
            order=order,
        )
        return plan, None

    def ended(self, operations: int, *, has_saved: bool, offered_nbytes: int) -> None:
        """A forward has ended, of which so many bytes could have been moved."""
        self.saved_nbytes = offered_nbytes


class Experience:
    """The batches of a model that were cut into the same pieces."""

    def __init__(self, device: torch.device, pieces: int) -> None:
        #: Bytes that one strand may have on their way to the host, and one on their way back.
        self.flying = 0
        self._device = device
        # What may be allocated on it.
        self._allowed: int | None = None
        self._pieces = pieces
        #: Of each strand.
        self.histories: list[StrandHistory] = []
        #: Whether all of a batch was seen to fit on the device.
        self.fits = False

    @staticmethod
    def of(
        model: nn.Module, device: torch.device, memory: int | None, pieces: Sequence[range], form: str = ""
    ) -> Experience:
        """What is known of a model's batches of samples of this form that may take so much memory (None: all)."""
        known = _ALL.setdefault(model, OrderedDict())
        autocast = torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)
        key = (device, memory, len(pieces), len(pieces[0]), form, model.training, autocast)
        experience = known.pop(key, None) or Experience(device, len(pieces))
        if len(known) >= _MOST:
            known.popitem(last=False)
        known[key] = experience
        return experience

    def begin(self, memory: int | None) -> int:
        """A batch begins, whose strands spill. Returns the bytes that they may take."""
        room = _room(self._device, memory)
        if self._device.type == "cuda":
            self._allowed = torch.cuda.memory_allocated(self._device) + room
            torch.cuda.reset_peak_memory_stats(self._device)
        if not self.histories:
            self.flying = room // _FLYING
            self.histories = [StrandHistory(self.flying) for _ in range(self._pieces)]
        return room

    def ended(self, host_nbytes: int) -> None:
        """A batch that spilled has come to its end: takes note of how much more of it could stay on the device.

        `host_nbytes`: the most that there was on the host of strands that waited.
        """
        if self._allowed is None:
            return
        saved = sum(history.saved_nbytes for history in self.histories)
        kept = sum(min(history.keep_nbytes, history.saved_nbytes) for history in self.histories)
        spare = int((self._allowed - torch.cuda.max_memory_allocated(self._device)) * _BOLDNESS)
        self.fits = saved - kept + host_nbytes <= spare
        keep = max(kept + spare, 0)
        for history in self.histories:
            history.keep_nbytes = keep * history.saved_nbytes // max(saved, 1)

    def failed(self) -> bool:
        """A batch ran out of memory. Returns whether the next one will take less."""
        is_less = self.fits or any(history.keep_nbytes for history in self.histories)
        self.fits = False
        for history in self.histories:
            history.keep_nbytes = 0
        return is_less


def _room(device: torch.device, memory: int | None) -> int:
    """Bytes that a batch may take on a device. The host, to which strands go, has none to spare."""
    return room_on(device, memory) if device.type == "cuda" else 0


def forget_experience(model: nn.Module) -> None:
    """Forgets what batches of a model have taught."""
    _ALL.pop(model, None)
