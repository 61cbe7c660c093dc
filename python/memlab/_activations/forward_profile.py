"""The profile of a forward and its backward, and the schedule derived from it."""

from __future__ import annotations

import copy
import itertools
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from memlab import _native
from memlab._activations.backward_simulation import BackwardSimulation, SimulatedOperation
from memlab._activations.offload_schedule import OffloadSchedule
from memlab._activations.storage_contents import StorageContent
from memlab._paging.torch_private import spin

# Share of the time of a forward's operations that copies may fill.
_COPY_TIME_SHARE = 0.8
_UNSTORABLE_NBYTES = 1 << 44
# Cycles of a GPU in which a host launches an operation: about 0.1 ms.
_LAUNCH_CYCLES = 200_000
# Time of the host to note an operation and to run it again. Forwards of small operations wait for their host.
_HOST_NS = 50_000
# Shares of the budget that recomputed values may take, to choose from.
_WORKING_SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 7 / 8)
# Most attempts to shorten the chains of a choice.
_MAX_CUTS = 6


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
    #: True if the memory limit has shortened chains of recomputed values.
    has_cuts: bool
    #: The time that it costs.
    nanoseconds: float


class ForwardProfile:
    """The operations of a forward with their times, inputs and outputs, and the reads of backward."""

    def __init__(self, device: torch.device, *, is_timed: bool = True) -> None:
        self._is_timed = is_timed
        self._is_cuda = device.type == "cuda"
        self._values: list[_Value] = []
        self._operations: list[_Operation] = []
        self._reads: list[int] = []
        # Parameters read by repeatable operations, until the forward has ended.
        self._parameters: list[tuple[int, list[Tensor]]] = []

    def is_timing(self) -> bool:
        """True if operations are timed now. The capture of a graph would record the wait, and take no time."""
        return self._is_timed and not (self._is_cuda and torch.cuda.is_current_stream_capturing())

    def begin(self) -> Any:
        """The time at which an operation begins. The device waits for the host to launch it: that takes longer than many
        operations, and would count as their time."""
        if self._is_cuda:
            spin(_LAUNCH_CYCLES)
        return self.clock()

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
        began: Any = 0,
        ended: Any = 0,
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
        held |= self.held() | self._read_at_once()
        values = [(0 if value.key in held else value.cost, value.is_saved) for value in self._values]
        if sum(nbytes for nbytes, is_saved in values if is_saved) <= budget:
            return OffloadSchedule(
                pending_nbytes=budget,
                ahead_nbytes=budget,
                budget_nbytes=budget,
                keep_nbytes=budget,
                held=held,
                keeps_all=True,
            )
        if recompute and bytes_per_second is not None:
            choice = self._choice(values, budget, bytes_per_second)
        else:
            choice = _Choice([], [is_saved for _, is_saved in values], self._reads, 0, False, 0.0)
        stored = [nbytes for (nbytes, _), is_stored in zip(values, choice.stored, strict=True) if is_stored]
        recomputed = frozenset(index for index, is_recomputed in enumerate(choice.recomputed) if is_recomputed)
        keep = _keep_nbytes(stored, budget - choice.working)
        return OffloadSchedule(
            pending_nbytes=budget,
            ahead_nbytes=budget,
            budget_nbytes=budget,
            working_nbytes=choice.working,
            keep_nbytes=keep,
            offload_nbytes=max(sum(stored) - keep, 0),
            recomputed=recomputed,
            tracked=self._tracked(recomputed),
            held=held,
            order=list(dict.fromkeys(self._values[number].key for number in choice.order)),
        )

    def _tracked(self, recomputed: frozenset[int]) -> frozenset[int]:
        """The operations that make values which are saved, overwritten, or read by a recomputed operation."""
        read = {value for index in recomputed for value in self._operations[index].inputs}
        read.update(number for number, value in enumerate(self._values) if value.is_saved or value.is_overwritten)
        made = (index for index, operation in enumerate(self._operations) if not read.isdisjoint(operation.outputs))
        return recomputed.union(made)

    def _read_at_once(self) -> frozenset[Any]:
        """The contents of the loss: saved last, read first by backward, and each larger than all that were saved before it.

        Their copies would only delay the turn from forward to backward. Of contents that grow slowly, only the last counts.
        """
        keys: set[Any] = set()
        most = None
        for number in dict.fromkeys(self._reads):
            value = self._values[number]
            before = max((one.nbytes for one in self._values[:number] if one.is_saved), default=0)
            after = sum(one.nbytes for one in self._values[number + 1 :] if one.is_saved and one.key not in keys)
            if value.nbytes <= before or value.nbytes < after or (most is not None and value.nbytes > most):
                break
            keys.add(value.key)
            most = value.nbytes // 2
        return frozenset(keys)

    def _choice(self, values: list[tuple[int, bool]], budget: int, bytes_per_second: float) -> _Choice:
        """Chooses the values to store and the operations to recompute.

        Recomputed values stay in memory until they are read, and take that memory from stored ones. Of several shares of the
        budget for them, the one with the least time is chosen.
        """
        times = [self._nanoseconds(operation) for operation in self._operations]
        # Copies free memory in time until the last content is made that needs it.
        saving = [any(all(values[number]) for number in operation.outputs) for operation in self._operations]
        last = max((index for index, is_saving in enumerate(saving) if is_saving), default=len(times))
        moved = int(_COPY_TIME_SHARE * bytes_per_second * sum(times[: last + 1]) / 1e9)
        best = None
        for share in _WORKING_SHARES:
            working = int(budget * share)
            choice = self._choice_within(working, times, values, budget, moved, 1e9 / bytes_per_second)
            if best is not None and choice.nanoseconds >= best.nanoseconds:
                break
            best = choice
            if not choice.has_cuts:
                break
        assert best is not None
        return best

    def _choice_within(
        self, working: int, times: list[int], values: list[tuple[int, bool]], room: int, moved: int, ns_per_byte: float
    ) -> _Choice:
        """A choice in which chains of recomputed values take at most about `working` bytes: longer ones are cut by storing
        values. Recomputed and stored values share `room`; `moved` bytes more can be copied in time."""
        nbytes = [value.nbytes for value in self._values]
        steps = [SimulatedOperation(operation.inputs, operation.outputs) for operation in self._operations]
        stored_after_all: set[int] = set()
        # Ends because values that are cut are never recomputed again: each attempt cuts at least one more.
        for attempt in itertools.count(1):
            operations = [
                (ns + _HOST_NS, one.inputs, one.outputs, one.is_repeatable and stored_after_all.isdisjoint(one.outputs))
                for ns, one in zip(times, self._operations, strict=True)
            ]
            recomputed, stored = _native.choose_recomputation(
                operations, values, max(room - working, 0) + moved, ns_per_byte
            )
            simulation = BackwardSimulation(steps, nbytes, self._reads, stored, recomputed, working)
            cuts = set().union(*(_cuts(chain, nbytes, working) for chain in simulation.excesses))
            if not cuts or (attempt >= _MAX_CUTS and simulation.peak <= room):
                break
            stored_after_all |= cuts
        again = sum(ns + _HOST_NS for ns, is_recomputed in zip(times, recomputed, strict=True) if is_recomputed)
        sizes = [size for (size, _), is_stored in zip(values, stored, strict=True) if is_stored]
        waited = max(sum(sizes) - _keep_nbytes(sizes, room - simulation.peak) - moved, 0) * ns_per_byte
        return _Choice(recomputed, stored, simulation.order, simulation.peak, bool(stored_after_all), again + waited)

    def _nanoseconds(self, operation: _Operation) -> int:
        if not self._is_cuda or operation.ended == 0:
            return int(operation.ended - operation.began)
        operation.ended.synchronize()
        return int(operation.began.elapsed_time(operation.ended) * 1e6)


def _keep_nbytes(stored: list[int], room: int) -> int:
    """Bytes of stored contents that stay. The first ones leave; there is room for the largest of these beside the others."""
    leaving, largest = sum(stored) - room, 0
    for nbytes in stored:
        if leaving <= 0:
            break
        leaving -= nbytes
        largest = max(largest, nbytes)
    return max(room - largest, 0)


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
