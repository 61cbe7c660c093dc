"""The survey of a model for several devices: finds the places where its forward may be cut.

A border is the start of a module's call, because the arguments can be moved to the next device there. A border is possible
if later operations need earlier tensors only through the arguments of that call and of later calls. The survey detects this
in the traced forward, which runs on one device. It records the time at which each tensor was created, and the arguments of
each call. Positions count the segments of the trace.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from memlab._paging.compute_speed import formulas, operations_of
from memlab._paging.paged_tensor import Weight
from memlab._paging.torch_private import LIFT_FRESH, tensor_key
from memlab._paging.tracing import Trace, Tracer, tensors_in, written_by


@dataclass
class Call:
    """An open call of a module with weights in it. Such calls move their arguments to their device."""

    number: int
    entered: int  # The position at its start.
    arguments: set[int | None] = field(default_factory=set)  # Keys of the storages among them.


class Survey:
    """Results of the traced forwards."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = list(model.modules())
        self.names = {module: name or type(module).__name__ for name, module in model.named_modules()}
        self.weighted = [
            any(True for _ in module.parameters()) or any(True for _ in module.buffers()) for module in self.modules
        ]
        self.trace = Trace()  # The pager's, which receives the trace of each forward.
        self.formulas = formulas()
        self.operations: Counter[int] = Counter()  # Floating-point operations by position.
        self.held: dict[nn.Module, tuple[int, int]] = {}  # First and last use of a module's own weights.
        self.used_at: dict[Weight, tuple[int, int]] = {}
        self.computed_at: dict[Weight, frozenset[int]] = {}
        self.called: dict[
            int, tuple[int, int]
        ] = {}  # By a module's index: positions of its first call's start, last call's end.
        self.blocked: list[tuple[int, int, str]] = []  # First and last impossible border, and the reason.

    def begin(self) -> Survey:
        """Returns a copy for one forward. `take` makes it this survey if that forward does not fail."""
        copied = copy.copy(self)
        for name in ("operations", "held", "used_at", "computed_at", "called", "blocked"):
            setattr(copied, name, copy.copy(getattr(self, name)))
        return copied

    def take(self, copied: Survey) -> None:
        self.__dict__.update(copied.__dict__)

    def borders(self) -> list[int]:
        """Returns all positions at which a border is possible."""
        reasons = self.reasons()
        return [
            position
            for position, segment in enumerate(self.trace.segments)
            if position and segment.key % 2 == 0 and self.weighted[segment.key // 2] and position not in reasons
        ]

    def reasons(self) -> dict[int, str]:
        """Returns the reasons why positions are no borders, for positions where a call of a module with weights starts."""
        found: dict[int, str] = {}
        spans = [
            (first + 1, last, f"{self.names[module]} uses its weights before and after")
            for module, (first, last) in self.held.items()
        ]
        spans += [(*self.used_at[w], f"{w.name} is written to") for w in self.trace.written if w in self.used_at]
        for first, last, why in (*self.blocked, *spans):
            for position in range(first, last + 1):
                found.setdefault(position, why)
        return found


class SurveyTracer(Tracer):
    """Traces one outermost call for a survey."""

    def __init__(self, survey: Survey, weights: list[Weight], device: torch.device, reads_rows: bool) -> None:
        super().__init__(weights, device, reads_rows)
        self.whole = survey
        self.survey = survey.begin()
        self.start = len(survey.trace.segments)
        self.made: dict[int | None, int] = {}  # By the key of a storage: the position at which it was created.
        self.open_calls: list[Call] = []

    @property
    def position(self) -> int:
        return self.start + len(self.trace.segments) - 1

    def boundary(self, key: int) -> None:
        super().boundary(key)
        module, ends = divmod(key, 2)
        self.open_calls = [call for call in self.open_calls if call.number in self.calls]
        if not ends and self.survey.weighted[module]:
            self.open_calls.append(Call(self.calls[-1], self.position))
        for call in self.calls:
            index = self.trace.modules[call]
            first, _ = self.survey.called.get(index, (self.position, 0))
            self.survey.called[index] = first, self.position

    def arguments(self, values: Any) -> None:
        """Records the arguments of the call that has just started."""
        if self.open_calls and self.open_calls[-1].number == self.calls[-1]:
            self.open_calls[-1].arguments = {tensor_key(tensor) for tensor in tensors_in(values)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        written = written_by(func, args, kwargs or {})
        if func is LIFT_FRESH:
            # Created by `torch.tensor`, which is no operation.
            self.made[tensor_key(args[0])] = self.position
        before = set()
        ours: list[Tensor] = []
        others: list[Tensor] = []
        for tensor in tensors_in((args, kwargs)):
            key = tensor_key(tensor)
            before.add(key)
            (ours if key in self.weights else others).append(tensor)
            if key not in self.weights and tensor.device.type == self.device.type and not _is_number(tensor):
                self._note_need(key, any(tensor is other for other in written))
        for tensor in tensors_in(result):
            key = tensor_key(tensor)
            if key not in before and key not in self.weights:
                self.made[key] = self.position
        self.survey.operations[self.position] += operations_of(
            self.survey.formulas, func, args, kwargs or {}, result, ours, others
        )
        return result

    def _note_need(self, key: int | None, written: bool) -> None:
        """Blocks the borders that are impossible because an operation uses a storage from another position."""
        position, made = self.position, self.made.get(key, -1)
        reached = made
        for call in self.open_calls:
            if call.entered > reached:
                if key not in call.arguments:
                    self._block(reached, call.entered, "is given nothing of what it reads")
                reached = call.entered
        if position > reached:
            self._block(reached, position, "reads what was made before")
        if written and position > made:
            # The original would not be written to, and the program may read it.
            self._block(made, position, "writes to what was made before")

    def _block(self, after: int, last: int, what: str) -> None:
        module = self.survey.modules[self.trace.modules[self.calls[-1]]]
        self.survey.blocked.append((after + 1, last, f"{self.survey.names[module]} {what}"))

    def _use(self, weight: Weight) -> None:
        super()._use(weight)
        position, survey = self.position, self.survey
        first, _ = survey.used_at.get(weight, (position, 0))
        survey.used_at[weight] = first, position
        holders = {entry.module for paged in weight.tensors for entry in paged.entries}
        called = survey.modules[self.trace.modules[self.calls[-1]]]
        for holder in {called} & holders or holders:
            first, _ = survey.held.get(holder, (position, 0))
            survey.held[holder] = first, position

    def _compute(self, weight: Weight) -> None:
        super()._compute(weight)
        self.survey.computed_at[weight] = self.survey.computed_at.get(weight, frozenset()) | {self.position}

    def finish(self) -> Trace:
        trace = super().finish()
        self.whole.take(self.survey)
        return trace


def _is_number(tensor: Tensor) -> bool:
    """Returns True for a number on the CPU, which PyTorch accepts beside tensors of any device."""
    return tensor.dim() == 0 and tensor.device.type == "cpu"
