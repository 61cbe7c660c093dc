"""The profile of a forward and its backward, and the schedule derived from it."""

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

# Share of the time of a forward's operations that copies may fill.
_COPY_TIME_SHARE = 0.8
_UNSTORABLE_NBYTES = 1 << 44
# Memory for prefetching is given up only if that saves at least this share of a forward's time. A smaller gain is lost
# again: longer chains need their inputs at once.
_WORTHWHILE_SHARE = 0.15
# Share of the budget that may be on its way to the host. The rest is for contents that stay.
_PENDING_SHARE = 0.5


@dataclass(slots=True)
class _Value:
    """A content, recorded for the lifetime of the profile."""

    key: Any
    nbytes: int
    is_saved: bool = False
    is_overwritten: bool = False
    is_held: bool = False

    @property
    def cost(self) -> int:
        """Bytes to store it. A value overwritten before it is saved would need an immediate copy: it is never stored."""
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
    """The treatment of a forward's operations and values."""

    recomputed: list[bool]
    stored: list[bool]
    #: The stored values, by their number, in the order in which backward reads them.
    order: list[int]
    #: Peak bytes of recomputed values.
    working: int
    #: The time that it costs.
    nanoseconds: float


class ForwardProfile:
    """The operations of a forward with their times, inputs and outputs, and the reads of backward."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._values: list[_Value] = []
        self._operations: list[_Operation] = []
        self._reads: list[int] = []
        # Parameters read by repeatable operations, until the forward has ended.
        self._parameters: list[tuple[int, list[Tensor]]] = []
        self.largest = 0

    def clock(self) -> Any:
        """The current time on the device."""
        if not self._is_cuda:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def made(self, content: StorageContent) -> None:
        """Records a new content. Contents are numbered in this order."""
        self._values.append(_Value(content.key, content.nbytes))
        self.largest = max(self.largest, content.nbytes)

    def saved(self, content: StorageContent) -> None:
        """Records that backward needs a content."""
        self._values[content.number].is_saved = True

    def overwritten(self, content: StorageContent) -> None:
        """Records that another content has overwritten this one."""
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
        """Records an operation that ran."""
        made = [content.number for content in outputs if content is not None]
        if is_repeatable and made:
            self._parameters.append((len(self._operations), parameters))
        numbers = [content.number for content in inputs]
        self._operations.append(_Operation(numbers, made, is_repeatable, began, ended))

    def ended(self) -> None:
        """Ends the forward. Parameters that are freed by then, as FSDP's are, cannot be read again in any backward."""
        for index, parameters in self._parameters:
            if any(one.numel() and not one.untyped_storage().nbytes() for one in parameters):
                self._operations[index].is_repeatable = False
        self._parameters.clear()

    def read(self, content: StorageContent) -> None:
        """Records that backward reads a content."""
        self._reads.append(content.number)

    def loaded(self, content: StorageContent) -> None:
        """Records that a content was loaded from the host: if its memory is still alive, the program holds it."""
        if not content.weak.expired():
            self._values[content.number].is_held = True

    def until_now(self) -> ForwardProfile:
        """A snapshot of the profile: the forward may go on, in another thread."""
        profile = copy.copy(self)
        profile._operations, profile._reads = list(self._operations), list(self._reads)
        # Copied last, since the other lists refer to it.
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
        """The schedule with the least time. Waits until the GPU has completed the forward."""
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
        """Chooses the values to store and the operations to recompute.

        Recomputed values stay in memory until they are read, and so do prefetched ones: at first each group has half of the
        budget. If backward then waits for the bus, recomputed values may take nearly all of it.
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
        """A choice in which chains of recomputed values take at most `working` bytes: longer ones are cut by storing
        values."""
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
    """Values of a chain to store, so that the values between them take at most `working` bytes. Prefers small values."""
    cuts: set[int] = set()
    begin, in_use = 0, 0
    for index, value in enumerate(chain):
        in_use += nbytes[value]
        if in_use > working and index > begin:
            # Not in the first half, since pieces would be much smaller than allowed.
            at = min(range((begin + index + 1) // 2, index + 1), key=lambda position: nbytes[chain[position]])
            cuts.add(chain[at])
            begin, in_use = at + 1, sum(nbytes[one] for one in chain[at + 1 : index + 1])
    return cuts
