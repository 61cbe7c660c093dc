"""What earlier forwards of the same kind have taught."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Protocol

import torch

from memlab._activations.lanes import DeviceLane
from memlab._activations.learning import Lesson
from memlab._activations.plans import Plan

# How many kinds of forwards are remembered, and how often one may turn out to be another.
_MOST = 256
_PATIENCE = 3


class Remembered(Protocol):
    """What is known of forwards of one kind."""

    #: The contents that the last backward read from the host; None: where it paused.
    order: list[Any]

    def begin(self) -> tuple[Plan, Lesson | None]:
        """The plan for a forward, and where to note what is seen of it."""

    def ended(self, operations: int, *, has_saved: bool, offered_nbytes: int) -> None:
        """A forward has ended, after so many operations; whether autograd has saved something that can be moved, and bytes
        of it that were copied to the host or could have been."""


class Kinds(Protocol):
    """What is known of forwards, by their kind."""

    def beginning_with(self, signature: Any) -> Remembered:
        """Those that begin with the same operation on the same shapes."""


class History:
    """The forwards that begin with the same operation on the same shapes.

    The first one shows which contents the program holds anyway, and in which order they are read; the second, how long its
    operations take. From the third on there is a plan.
    """

    def __init__(self, device: torch.device, budget: int, *, recompute: bool) -> None:
        self._lock = threading.Lock()
        self._device = device
        self._budget = budget
        self._recompute = recompute
        self._forwards = 0
        self._patience = _PATIENCE
        # Whether there was nothing to do in the last forward, as without gradients: then nothing is looked at.
        self._is_idle = False
        self._lesson: Lesson | None = None
        self._operations = 0
        #: The contents that the last backward read from the host.
        self.order: list[Any] = []
        self.plan = self._cautious(frozenset())

    def begin(self) -> tuple[Plan, Lesson | None]:
        with self._lock:
            return self._next()

    def _next(self) -> tuple[Plan, Lesson | None]:
        if self._is_idle:
            return self.plan, None
        self._forwards += 1
        lane = DeviceLane.of(self._device)
        if self._forwards <= 2:
            held = self._lesson.held() if self._lesson is not None else frozenset()
            self.plan = self._cautious(held)
            if self._forwards == 2:
                lane.measure()
        elif self._forwards == 3 and self._lesson is not None:
            lesson = self._lesson.until_now()
            self.plan = lesson.plan(self._budget, lane.bytes_per_second(), self.plan.held, recompute=self._recompute)
            self._operations = lesson.operations
        self._lesson = Lesson(self._device) if self._forwards <= 2 else None
        if self.order and self._forwards != 3:
            self.plan.ordered(self.order)
        self.order = []
        return self.plan, self._lesson

    def _cautious(self, held: frozenset[Any]) -> Plan:
        """Nothing is known yet: copies what does not fit."""
        moving = self._budget // 4
        keep = self._budget - moving
        return Plan(flying_nbytes=moving, ahead_nbytes=moving, keep_nbytes=keep, held=held, evicts=True)

    def ended(self, operations: int, *, has_saved: bool, offered_nbytes: int) -> None:
        with self._lock:
            self._finish(operations, has_saved=has_saved)

    def _finish(self, operations: int, *, has_saved: bool) -> None:
        if not has_saved:
            self._forwards -= not self._is_idle
            self._is_idle = True
        elif self._is_idle:
            self._is_idle = False
        elif self._forwards > 2 and operations != self._operations and self._patience > 0:
            self._patience -= 1
            self._forwards = 0
            self._lesson = None


_ALL: dict[Any, Histories] = {}


class Histories:
    """The histories of a device and a budget."""

    def __init__(self, device: torch.device, budget: int, *, recompute: bool) -> None:
        self._new = lambda: History(device, budget, recompute=recompute)
        self._known: OrderedDict[Any, History] = OrderedDict()

    @staticmethod
    def of(device: torch.device, budget: int, *, recompute: bool) -> Histories:
        key = (device, budget, recompute)
        histories = _ALL.get(key)
        if histories is None:
            histories = _ALL[key] = Histories(device, budget, recompute=recompute)
        return histories

    def beginning_with(self, signature: Any) -> History:
        history = self._known.pop(signature, None)
        if history is None:
            history = self._new()
            if len(self._known) >= _MOST:
                self._known.popitem(last=False)
        self._known[signature] = history
        return history
