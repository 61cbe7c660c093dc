"""Runs a few samples through a model, whole and in pieces, and compares outputs and gradients.

The tolerance is measured. All parameters, buffers and inputs are moved by about the rounding of the number format. The
change of the results is the tolerance. Where memory allows a copy, the trial is in float64: it rounds far less than the
model in training, and detects differences only slightly above rounding in float64.
"""

from __future__ import annotations

import warnings
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from memlab._batches.nested import Samples, call, names_of
from memlab._batches.sizing import room_on
from memlab._batches.state import Autocast, Buffers, RandomState
from memlab._paging.device_memory import capacity
from memlab._paging.torch_private import OperationMode, tree_flatten, tree_map_only

# Factor of the trial's rounding in the tolerance: kernels of other sizes add in another order.
_MARGIN = 64
_MARGIN_WHERE_NOTHING_MOVES, _MOST_WHERE_NOTHING_MOVES = 16, 0.25
# Divisor of the free memory for a trial's copies and gradients.
_SHARE_OF_MEMORY = 2
# Sets of gradients that exist at the same time: of the whole, moved, of a piece, and two sums.
_SETS = 5
_LITTLE = 64 << 20

# Makes the compared values from a model's outputs for some samples: a number with a graph, and other tensors.
Objective = Callable[[Any, range], tuple[Tensor, Sequence[Tensor]]]
_Move = Callable[[Tensor, str], Tensor]
_TF32 = 2.0**-10
_FORMATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class DrewRandomNumbers(Exception):
    """The model has drawn random numbers, so the same samples give different results."""


@dataclass
class TrialResult:
    """The results of some samples. Lengths are the norms of all summands, added up."""

    tensors: list[Tensor]
    lengths: list[float]


def weighted_sum(parts: Sequence[tuple[TrialResult, float]]) -> TrialResult:
    """The weighted sum of the results of pieces."""
    seen, weights = zip(*parts, strict=True)

    def added(values: Sequence[Any]) -> Any:
        return sum(weight * value for value, weight in zip(values, weights, strict=True))

    tensors = [added(same) for same in zip(*(one.tensors for one in seen), strict=True)]
    return TrialResult(tensors, [float(added(same)) for same in zip(*(one.lengths for one in seen), strict=True)])


class TrialForm(Enum):
    """The form of the model in a trial. Each form finds more than the next, and supports fewer models."""

    DOUBLE = "a replica in float64"
    REPLICA = "a replica"
    ITSELF = "itself, for a forward that is a method of something else"
    RESULTS = "itself, without gradients"

    @staticmethod
    def of(model: nn.Module, *, is_sharded: bool) -> list[TrialForm]:
        """The forms to try one after the other."""
        if is_sharded:
            return [TrialForm.RESULTS]
        is_compiled = any(
            type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
            for module in model.modules()
        )
        # (A compiled model would be compiled again for other sizes.)
        return [kind for kind in TrialForm if kind is not TrialForm.ITSELF or not is_compiled]


class Trial:
    """A trial of a model with a few samples. The model is left unchanged."""

    def __init__(
        self, model: nn.Module, samples: Samples, device: torch.device, memory: int | None, kind: TrialForm
    ) -> None:
        """`memory`: the limit of the process on the GPU; None: all. Raises MemoryError if the form does not fit."""
        self._samples, self._device = samples, device
        self._is_double, self._is_copied = kind is TrialForm.DOUBLE, kind is not TrialForm.RESULTS
        self._model = _replica(model, {}) if kind in (TrialForm.DOUBLE, TrialForm.REPLICA) else model
        named = dict(self._model.named_parameters())
        formats = [one.dtype for one in named.values() if one.dtype in _FORMATS]
        if torch.is_autocast_enabled(device.type):
            formats.append(torch.get_autocast_dtype(device.type))
        # The rounding of the model in training, by its coarsest number format, and that of the trial.
        self._own = max(torch.finfo(one).eps for one in formats or [torch.float32])
        self._coarsest = torch.finfo(torch.float64).eps if self._is_double else max(self._own, _rounding_of(device))
        #: The names of the outputs in messages.
        self.names: list[str] = []
        # The share by which numbers were moved.
        self._step = self._coarsest
        room = (room_on(device, memory) if device.type == "cuda" else capacity(device, 0)) // _SHARE_OF_MEMORY
        if self._is_copied:
            # Copies in float64, and moved copies.
            room -= sum(8 * 2 * one.numel() if self._is_double else one.nbytes for one in named.values())
            if room < 0:
                raise MemoryError(f"no room for {kind.value}")
        # Limits gradients to the size of the training's gradients, but not below a small constant.
        room = min(room, max(sum(one.nbytes for one in named.values()), _LITTLE))
        # The smallest parameters, as many as have gradients that fit.
        self._wanted: list[str] = []
        if not self._is_copied:
            return
        self._state = {name: self._copied(one) for name, one in named.items()}
        self._buffers = {name: self._copied(one) for name, one in self._model.named_buffers()}
        for name in sorted(named, key=lambda name: named[name].numel()):
            room -= _SETS * self._state[name].nbytes
            if named[name].requires_grad and room >= 0:
                self._wanted.append(name)

    def outputs(self, rows: range) -> list[Any]:
        """The tensors and other outputs for some samples, without a graph. Raises DrewRandomNumbers as `seen` does."""
        found: list[Any] = []

        def objective(outputs: Any, _rows: range) -> tuple[Tensor, Sequence[Tensor]]:
            self.names = names_of(outputs)
            found.extend(one.detach() if isinstance(one, Tensor) else one for one in tree_flatten(outputs)[0])
            return torch.zeros(()), []

        self._run(rows, objective, _as_it_is, [])
        return found

    def with_draws(self, rows: range, mode: AbstractContextManager[Any]) -> list[Tensor]:
        """The tensors that some samples give within a mode, with random numbers."""
        with warnings.catch_warnings(), torch.no_grad(), mode:
            warnings.simplefilter("ignore")
            _, outputs = self._called(rows, _as_it_is, [])
        return [one for one in tree_flatten(outputs)[0] if isinstance(one, Tensor)]

    def seen(self, rows: range, objective: Objective, *, moved: bool = False) -> TrialResult:
        """The objective's number and tensors for some samples, and the number's gradients. `moved`: with all numbers
        slightly changed. Raises DrewRandomNumbers if the model draws random numbers."""
        if moved and self._is_copied:
            # Small enough that the model takes no other branch.
            self._step = max(self._coarsest, self._own / 1024)
        tensors = self._run(rows, objective, self._moved if moved else _as_it_is, self._wanted)
        return TrialResult(tensors, [float(one.double().norm()) for one in tensors])

    def _run(self, rows: range, objective: Objective, move: _Move, wanted: Sequence[str]) -> list[Tensor]:
        before = RandomState({self._device})
        with ExitStack() as stack:
            # Hides the trial's warnings from the caller, for example that a recurrent layer's weights are not contiguous.
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            if self._is_double:
                stack.enter_context(Autocast.off())
            stack.enter_context(torch.set_grad_enabled(bool(wanted)))
            # Keeps the caller's hooks from seeing tensors saved here.
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(_as_saved, _as_saved))
            leaves, outputs = self._called(rows, move, wanted)
            if RandomState({self._device}) != before:
                raise DrewRandomNumbers
            number, beside = objective(outputs, rows)
            given: Sequence[Tensor | None] = [None] * len(leaves)
            if leaves and number.requires_grad:
                given = torch.autograd.grad(number, leaves, allow_unused=True)
        if leaves and all(one is None for one in given):
            raise TypeError("the model computes with its own parameters")
        gradients = [torch.zeros_like(leaf) if one is None else one for leaf, one in zip(leaves, given, strict=True)]
        return [number.detach(), *(one.detach() for one in beside), *gradients]

    def _called(self, rows: range, move: _Move, wanted: Sequence[str]) -> tuple[list[Tensor], Any]:
        """The copies of parameters that require gradients, and the outputs."""
        values = tree_map_only(
            Tensor, lambda one: move(self._copied(one), str(tuple(one.shape))), self._samples.piece(rows, self._device)
        )
        if not self._is_copied:
            buffers = Buffers(self._model)
            try:
                return [], call(self._model, values)
            finally:
                buffers.set_before()
        state = {name: move(one, name) for name, one in self._state.items()}
        leaves = {name: state[name].detach().requires_grad_() for name in wanted}
        copies = {name: move(one, name).clone() for name, one in self._buffers.items()}
        tensors = {**state, **leaves, **copies}
        with _Formats() as formats:
            outputs = call(lambda *some, **named: functional_call(self._model, tensors, some, named), values)
        self._coarsest = max(self._coarsest, formats.eps)
        return [*leaves.values()], outputs

    def are_apart(self, whole: TrialResult, moved: TrialResult, parts: TrialResult) -> bool:
        """Compares the sum of parts with the whole: True if they differ by more than rounding explains. `moved`: the whole
        with slightly changed numbers."""
        allowed = self._own + _MARGIN * self._coarsest
        if not self._is_copied:
            allowed = min(allowed * _MARGIN_WHERE_NOTHING_MOVES, _MOST_WHERE_NOTHING_MOVES)
        for one, other, added, length in zip(whole.tensors, moved.tensors, parts.tensors, parts.lengths, strict=True):
            one = one.double()
            bound = allowed * ((other.double() - one).norm() / self._step + length)
            is_other = ~((added.double() - one).norm() <= bound)
            # Writes into zeroed memory: on a simulated card, whose kernels compute nothing, the result stays False.
            if torch.logical_and(is_other, one.norm().isfinite(), out=torch.zeros_like(is_other)):
                return True
        return False

    def _copied(self, tensor: Tensor) -> Tensor:
        return tensor.detach().double() if self._is_double and tensor.is_floating_point() else tensor.detach()

    def _moved(self, tensor: Tensor, name: str) -> Tensor:
        if not tensor.is_floating_point() or not self._is_copied:
            return tensor
        dice = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        shares = torch.rand(tensor.shape, generator=dice, dtype=torch.float64).to(tensor.device) * 2 - 1
        return (tensor.double() * (1 + self._step * shares)).to(tensor.dtype)


def _replica(module: nn.Module, known: dict[int, nn.Module]) -> nn.Module:
    """A module with the same parameters, for attributes that a forward sets, such as a cached table. It is not compiled."""
    children = vars(module)["_modules"]
    if type(module).__name__ == "OptimizedModule":
        return _replica(children["_orig_mod"], known)
    if id(module) in known:
        return known[id(module)]
    replica = known[id(module)] = module.__new__(type(module))
    kinds = (dict, list, set, OrderedDict)
    replica.__dict__ = {name: one.copy() if type(one) in kinds else one for name, one in vars(module).items()}
    replica.__dict__["_compiled_call_impl"] = None
    for name, child in children.items():
        vars(replica)["_modules"][name] = None if child is None else _replica(child, known)
    return replica


def _rounding_of(device: torch.device) -> float:
    """The rounding of the coarsest format in which a device may compute with float32: TF32 on a GPU."""
    return _TF32 if device.type == "cuda" else 0.0


def _as_saved(tensor: Tensor) -> Tensor:
    return tensor


def _as_it_is(tensor: Tensor, _name: str) -> Tensor:
    return tensor


class _Formats(OperationMode):
    """Records the coarsest number format of the results of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = 0.0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for one in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(one, Tensor) and one.dtype in _FORMATS:
                self.eps = max(self.eps, torch.finfo(one.dtype).eps)
        return result
