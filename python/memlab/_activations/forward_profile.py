"""The profile of a forward and its backward, and the schedule of the next ones that follows from it."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from memlab import _native
from memlab._activations.backward_simulation import BackwardSimulation, SimulatedOperation
from memlab._activations.offload_schedule import OffloadSchedule
from memlab._activations.storage_contents import StorageContent

# How much of the time of a forward's operations copies are planned to fill.
_COPY_TIME_SHARE = 0.8
_UNSTORABLE_NBYTES = 1 << 44
# Memory for copies ahead of need is given up if that saves such a share of a forward's time. Less is lost again: what longer
# chains are made of is needed at once.
_WORTHWHILE_SHARE = 0.15
# How much of the budget may be on its way to the host. The rest is for what never leaves.
_PENDING_SHARE = 0.5


@dataclass(slots=True)
class _Value:
    """A content, as long as the profile lasts."""

    key: Any
    nbytes: int
    is_saved: bool = False
    is_overwritten: bool = False
    is_held: bool = False

    @property
    def cost(self) -> int:
        """What storing it takes. What is overwritten before backward needs it would have to be copied at once: never."""
        return _UNSTORABLE_NBYTES if self.is_overwritten and not self.is_saved else self.nbytes


@dataclass(slots=True)
class _Operation:
    inputs: list[int]
    outputs: list[int]
    is_repeatable: bool
    began: Any = 0
    ended: Any = 0


@dataclass(frozen=True)
class _Choice:
    """What is done with the operations and values of a forward."""

    recomputed: list[bool]
    stored: list[bool]
    #: The stored values, by their number, in the order in which backward reads them.
    order: list[int]
    #: The most bytes of values that are made again.
    working: int
    #: What it takes in time.
    nanoseconds: float


class ForwardProfile:
    """The operations of a forward with their times, what each read and made, and what backward asked for."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._values: list[_Value] = []
        self._operations: list[_Operation] = []
        self._reads: list[int] = []
        # Those of operations that can run again, until the forward has ended.
        self._parameters: list[tuple[int, list[Tensor]]] = []
        self.largest = 0

    def clock(self) -> Any:
        """Now, on the device."""
        if not self._is_cuda:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def made(self, content: StorageContent) -> None:
        """A content that was not there before: they are numbered in this order."""
        self._values.append(_Value(content.key, content.nbytes))
        self.largest = max(self.largest, content.nbytes)

    def saved(self, content: StorageContent) -> None:
        """Backward needs a content."""
        self._values[content.number].is_saved = True

    def overwritten(self, content: StorageContent) -> None:
        """A content is gone: another one is in its memory."""
        self._values[content.number].is_overwritten = True

    def ran(
        self,
        inputs: list[StorageContent],
        parameters: list[Tensor],
        outputs: list[StorageContent | None],
        is_repeatable: bool,
        began: Any,
        ended: Any,
    ) -> None:
        """An operation ran."""
        made = [content.number for content in outputs if content is not None]
        if is_repeatable and made:
            self._parameters.append((len(self._operations), parameters))
        numbers = [content.number for content in inputs]
        self._operations.append(_Operation(numbers, made, is_repeatable, began, ended))

    def ended(self) -> None:
        """The forward has ended. Parameters that are freed by then, as FSDP's are, cannot be read again in any backward."""
        for index, parameters in self._parameters:
            if any(one.numel() and not one.untyped_storage().nbytes() for one in parameters):
                self._operations[index].is_repeatable = False
        self._parameters.clear()

    def read(self, content: StorageContent) -> None:
        """Backward reads a content."""
        self._reads.append(content.number)

    def loaded(self, content: StorageContent) -> None:
        """A content came back from the host: if it is still where it was, the program holds it."""
        if not content.weak.expired():
            self._values[content.number].is_held = True

    def until_now(self) -> ForwardProfile:
        """What is known by now: the forward may go on, in another thread."""
        profile = copy.copy(self)
        profile._operations, profile._reads = list(self._operations), list(self._reads)
        # Last, as the others name them.
        profile._values = list(self._values)
        return profile

    @property
    def operations(self) -> int:
        return len(self._operations)

    def held(self) -> frozenset[Any]:
        return frozenset(value.key for value in self._values if value.is_held)

    def schedule(
        self, budget: int, bytes_per_second: float | None, held: frozenset[Any], *, recompute: bool
    ) -> OffloadSchedule:
        """The schedule with the least time. Waits until the forward is done."""
        held |= self.held()
        values = [(0 if value.key in held else value.cost, value.is_saved) for value in self._values]
        fits = sum(nbytes for nbytes, is_saved in values if is_saved) <= budget
        pending_nbytes = 0 if fits else min(max(int(budget * _PENDING_SHARE), 2 * self.largest), budget)
        keep = budget - pending_nbytes
        if not fits and recompute and bytes_per_second is not None:
            choice = self._choice(values, budget, bytes_per_second)
        else:
            choice = _Choice([], [is_saved for _, is_saved in values], self._reads, 0, 0.0)
        stored = choice.stored
        total = sum(nbytes for (nbytes, _), is_stored in zip(values, stored, strict=True) if is_stored)
        return OffloadSchedule(
            pending_nbytes=pending_nbytes,
            ahead_nbytes=min(max(budget - choice.working, self.largest), pending_nbytes),
            keep_nbytes=keep,
            offload_nbytes=max(total - keep, 0),
            recomputed=frozenset(index for index, is_recomputed in enumerate(choice.recomputed) if is_recomputed),
            held=held,
            order=list(dict.fromkeys(self._values[number].key for number in choice.order)),
        )

    def _choice(self, values: list[tuple[int, bool]], budget: int, bytes_per_second: float) -> _Choice:
        """What is stored, and what runs again.

        What is made again is in memory until it is read, and so is what is loaded ahead: at first each has half of the
        budget. If that leaves so much to be stored that the bus is waited for, what is made again may have nearly all.
        """
        times = [self._nanoseconds(operation) for operation in self._operations]
        room = budget + int(_COPY_TIME_SHARE * bytes_per_second * sum(times) / 1e9)
        even, more = (
            self._choice_within(working, times, values, room, 1e9 / bytes_per_second)
            for working in (budget // 2, budget - self.largest)
        )
        return more if more.nanoseconds < even.nanoseconds - _WORTHWHILE_SHARE * sum(times) else even

    def _choice_within(
        self, working: int, times: list[int], values: list[tuple[int, bool]], room: int, ns_per_byte: float
    ) -> _Choice:
        """Where a chain of values that are made again takes more than `working` bytes, some of them are stored after all."""
        nbytes = [value.nbytes for value in self._values]
        steps = [SimulatedOperation(operation.inputs, operation.outputs) for operation in self._operations]
        stored_after_all: set[int] = set()
        while True:
            operations = [
                (ns, one.inputs, one.outputs, one.is_repeatable and stored_after_all.isdisjoint(one.outputs))
                for ns, one in zip(times, self._operations, strict=True)
            ]
            recomputed, stored = _native.choose_recomputation(operations, values, room, ns_per_byte)
            simulation = BackwardSimulation(steps, nbytes, self._reads, stored, recomputed)
            cuts = _cuts(simulation.at_peak, nbytes, working) if simulation.peak > working else set()
            if not cuts:
                again = sum(ns for ns, is_recomputed in zip(times, recomputed, strict=True) if is_recomputed)
                total = sum(size for (size, _), is_stored in zip(values, stored, strict=True) if is_stored)
                waited = max(total - room, 0) * ns_per_byte
                return _Choice(recomputed, stored, simulation.order, simulation.peak, again + waited)
            stored_after_all |= cuts

    def _nanoseconds(self, operation: _Operation) -> int:
        if not self._is_cuda:
            return int(operation.ended - operation.began)
        operation.ended.synchronize()
        return int(operation.began.elapsed_time(operation.ended) * 1e6)


def _cuts(chain: list[int], nbytes: list[int], working: int) -> set[int]:
    """The values to store of a chain, so that what lies between them takes no more than `working` bytes: small ones."""
    cuts: set[int] = set()
    begin, in_use = 0, 0
    for index, value in enumerate(chain):
        in_use += nbytes[value]
        if in_use > working and index > begin:
            # Not in the first half, or pieces would be much smaller than they may be.
            at = min(range((begin + index + 1) // 2, index + 1), key=lambda position: nbytes[chain[position]])
            cuts.add(chain[at])
            begin, in_use = at + 1, sum(nbytes[one] for one in chain[at + 1 : index + 1])
    return cuts
