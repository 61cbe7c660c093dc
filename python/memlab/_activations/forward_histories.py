"""Histories of similar forwards, which determine the schedule of the next one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Protocol

import torch

from memlab._activations.copy_streams import CopyStream
from memlab._activations.forward_profile import ForwardProfile
from memlab._activations.offload_schedule import OffloadSchedule

# Maximum number of remembered kinds of forwards, and of restarts of a history whose forwards differ.
_MAX_SIGNATURES = 256
_MAX_RESTARTS = 3


class ForwardHistory(Protocol):
    """The history of forwards of one kind."""

    #: The contents that the last backward read from the host; None: a pause.
    order: list[Any]

    def begin(self) -> tuple[OffloadSchedule, ForwardProfile | None]:
        """The schedule of a forward, and the profile that records it."""

    def ended(self, operations: int, *, has_saved: bool, offered_nbytes: int) -> bool:
        """Records the end of a forward: the number of its operations, whether autograd has saved movable contents, and the
        bytes of these that were copied to the host or could have been. Returns True if it was the expected forward."""


class ForwardHistories(Protocol):
    """The histories of forwards, by their kind."""

    #: Bytes that autograd saves in the forwards that keep all saved tensors, by the first of these tensors. None if the last
    #: forward did not keep all of them.
    resident: dict[Any, int] | None

    def beginning_with(self, signature: Any) -> ForwardHistory:
        """The history of forwards that begin with the same operation on the same shapes."""

    def closed(self, first_saved: Any, resident_nbytes: int | None) -> None:
        """Records the end of a block that has saved tensors: the first one, and the bytes of all of them if they stay."""


class SignatureHistory:
    """The forwards that begin with the same operation on the same shapes.

    The first forward shows which contents the program holds anyway, and the order of their reads. The second shows the times
    of its operations. From the third on, a schedule exists.
    """

    def __init__(self, device: torch.device, budget: int, *, recompute: bool) -> None:
        self._lock = threading.Lock()
        self._device = device
        self._budget = budget
        self._recompute = recompute
        self._forwards = 0
        self._restarts_left = _MAX_RESTARTS
        # True if the last forward saved nothing, as without gradients: then forwards are not profiled.
        self._is_idle = False
        self._profile: ForwardProfile | None = None
        self._operations = 0
        #: The contents that the last backward read from the host.
        self.order: list[Any] = []
        self.schedule = self._cautious(frozenset())

    def begin(self) -> tuple[OffloadSchedule, ForwardProfile | None]:
        with self._lock:
            return self._next()

    def _next(self) -> tuple[OffloadSchedule, ForwardProfile | None]:
        if self._is_idle:
            return self.schedule, None
        self._forwards += 1
        copy_stream = CopyStream.of(self._device)
        if self._forwards <= 2:
            held = self._profile.held() if self._profile is not None else frozenset()
            self.schedule = self._cautious(held)
            if self._forwards == 2:
                copy_stream.measure()
        elif self._forwards == 3 and self._profile is not None:
            profile = self._profile.until_now()
            self.schedule = profile.schedule(
                self._budget, copy_stream.bytes_per_second(), self.schedule.held, recompute=self._recompute
            )
            self._operations = profile.operations
        self._profile = ForwardProfile(self._device, is_timed=self._forwards == 2) if self._forwards <= 2 else None
        if self.order and self._forwards != 3:
            self.schedule.ordered(self.order)
        self.order = []
        return self.schedule, self._profile

    def _cautious(self, held: frozenset[Any]) -> OffloadSchedule:
        """A schedule without knowledge of the forward: copies the contents that do not fit."""
        moving = self._budget // 4
        keep = self._budget - moving
        return OffloadSchedule(pending_nbytes=moving, ahead_nbytes=moving, keep_nbytes=keep, held=held, evicts=True)

    def ended(self, operations: int, *, has_saved: bool, offered_nbytes: int) -> bool:
        with self._lock:
            is_expected = has_saved and operations == self._operations
            self._finish(operations, has_saved=has_saved)
            return is_expected

    def _finish(self, operations: int, *, has_saved: bool) -> None:
        if not has_saved:
            self._forwards -= not self._is_idle
            self._is_idle = True
        elif self._is_idle:
            self._is_idle = False
        elif self._forwards > 2 and operations != self._operations and self._restarts_left > 0:
            self._restarts_left -= 1
            self._forwards = 0
            self._profile = None


_ALL: dict[Any, SignatureHistories] = {}


class SignatureHistories:
    """The histories of a device and a budget."""

    def __init__(self, device: torch.device, budget: int, *, recompute: bool) -> None:
        self._new = lambda: SignatureHistory(device, budget, recompute=recompute)
        self._known: OrderedDict[Any, SignatureHistory] = OrderedDict()
        self._lock = threading.Lock()
        self._resident: OrderedDict[Any, int] = OrderedDict()
        self.resident: dict[Any, int] | None = None

    @staticmethod
    def of(device: torch.device, budget: int, *, recompute: bool) -> SignatureHistories:
        key = (device, budget, recompute)
        histories = _ALL.get(key)
        if histories is None:
            histories = _ALL[key] = SignatureHistories(device, budget, recompute=recompute)
        return histories

    def beginning_with(self, signature: Any) -> SignatureHistory:
        history = self._known.pop(signature, None)
        if history is None:
            history = self._new()
            if len(self._known) >= _MAX_SIGNATURES:
                self._known.popitem(last=False)
        self._known[signature] = history
        return history

    def closed(self, first_saved: Any, resident_nbytes: int | None) -> None:
        with self._lock:
            if resident_nbytes is None:
                self._resident.pop(first_saved, None)
                self.resident = None
                return
            self._resident[first_saved] = max(self._resident.get(first_saved, 0), resident_nbytes)
            if len(self._resident) > _MAX_SIGNATURES:
                self._resident.popitem(last=False)
            self.resident = self._resident
