"""The whole batch in one forward: tensors that autograd saves leave the GPU as far as they do not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from memlab._batches.batch import Batch
from memlab._batches.gradients import Marks
from memlab._batches.inputs import InputGradients
from memlab._batches.nested import call
from memlab._batches.observers import observer
from memlab._batches.out_of_memory import is_out_of_memory, make_room
from memlab._batches.sizing import room_on
from memlab._batches.state import Autocast, Buffers, RandomState
from memlab.activations import offload_activations

Scale = Callable[[Tensor], Tensor]

# Shares of the free memory for activations, tried in this order: operations need memory, too.
_SHARES = (0.6, 0.3, 0.1)
# The budgets that sufficed, by model and memory.
_BUDGETS: WeakKeyDictionary[nn.Module, dict[int | None, int]] = WeakKeyDictionary()
# The number of samples that did not fit, by model and memory.
_TOO_MANY: WeakKeyDictionary[nn.Module, dict[int | None, int]] = WeakKeyDictionary()


class TooLargeAtOnce(Exception):
    """A forward of all samples does not fit, even with all activations off the GPU. Gradients are unchanged."""


def forget_budgets(model: nn.Module) -> None:
    """Forgets the budgets and limits of a model."""
    _BUDGETS.pop(model, None)
    _TOO_MANY.pop(model, None)


class WholeBatch:
    """One batch through a model, as a whole."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._rows = range(len(batch.samples))

    def outputs(self) -> Any:
        """The model's outputs for the batch, with a graph.

        Raises:
            TooLargeAtOnce: one operation of the model does not fit.
        """
        buffers, random = Buffers(self._batch.model), RandomState({self._batch.device})
        for budget in self._budgets():
            try:
                with self._offloading(budget):
                    return call(self._batch.ranks.model(True), self._batch.samples.piece(self._rows, self._batch.device))
            except Exception as error:
                if not is_out_of_memory(error) or self._batch.ranks.are_several:
                    raise
                make_room(error)
            buffers.set_before()
            random.restore()
        raise TooLargeAtOnce

    def run(self, loss_of: Callable[[Any], Tensor], scale: Scale) -> Tensor:
        """Adds the gradients of `loss_of` the outputs and returns the loss, without a graph.

        Raises:
            TooLargeAtOnce: one operation of the model does not fit.
            torch.OutOfMemoryError: the same, after gradients were changed.
        """
        too_many = _TOO_MANY.get(self._batch.model, {}).get(self._batch.memory)
        if too_many is not None and len(self._rows) >= too_many:
            raise TooLargeAtOnce
        buffers = Buffers(self._batch.model)
        try:
            loss = self._within_a_budget(loss_of, scale, buffers)
            observer()(self._rows, len(self._rows))
        except BaseException:
            buffers.set_before()
            raise
        return loss

    def _within_a_budget(self, loss_of: Callable[[Any], Tensor], scale: Scale, buffers: Buffers) -> Tensor:
        parameters, random = self._batch.parameters, RandomState({self._batch.device})
        if self._batch.memory is not None and self._batch.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._batch.device)
        wanted: Sequence[Tensor] | None = None
        budgets = self._budgets()
        for index, budget in enumerate(budgets):
            marks, failed = Marks(parameters), None
            try:
                loss = self._once(budget, loss_of, scale, wanted)
            except Exception as error:
                if not is_out_of_memory(error) or self._batch.ranks.are_several:
                    raise
                failed = error
            if failed is None:
                self._remember(budget, budgets)
                return loss
            make_room(failed)
            untouched = {id(one) for one in marks.untouched()}
            wanted = [one for one in (parameters if wanted is None else wanted) if id(one) in untouched]
            if index + 1 == len(budgets):
                if len(wanted) < len(parameters):
                    raise failed
                _TOO_MANY.setdefault(self._batch.model, {})[self._batch.memory] = len(self._rows)
                raise TooLargeAtOnce from failed
            buffers.set_before()
            random.restore()
        raise AssertionError("the last budget returns or raises")

    def _once(
        self, budget: int | None, loss_of: Callable[[Any], Tensor], scale: Scale, wanted: Sequence[Tensor] | None
    ) -> Tensor:
        inputs = InputGradients(self._batch.samples)
        with self._offloading(budget):
            loss = loss_of(call(self._batch.ranks.model(True), inputs.piece(self._rows, self._batch.device)))
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            raise ValueError(f"the loss is {type(loss).__name__}: it must be a scalar tensor")
        with Autocast.off():
            scale(loss).backward(inputs=inputs.beside(wanted))
        inputs.take(self._rows)
        inputs.backward()
        return loss.detach()

    def _offloading(self, budget: int | None) -> AbstractContextManager[None]:
        return nullcontext() if budget is None else offload_activations(budget, device=self._batch.device)

    def _budgets(self) -> list[int | None]:
        """Budgets for activations on the GPU, the largest first. On the CPU nothing is offloaded."""
        if self._batch.device.type != "cuda":
            return [None]
        known = _BUDGETS.get(self._batch.model, {}).get(self._batch.memory)
        missing = sum(one.nbytes for one in self._batch.parameters if one.grad is None)
        room = max(room_on(self._batch.device, self._batch.memory) - missing, 0)
        budgets = [int(share * room) for share in _SHARES]
        return [*([] if known is None else [known]), *(one for one in budgets if known is None or one < known)]

    def _remember(self, budget: int | None, budgets: list[int | None]) -> None:
        """Keeps the budget for the next batches, since offloading learns per budget. If a batch has exceeded its limit,
        keeps the next smaller budget."""
        if budget is None:
            return
        memory = self._batch.memory
        if memory is not None and torch.cuda.max_memory_allocated(self._batch.device) > memory:
            smaller = [one for one in budgets if one is not None and one < budget]
            budget = max(smaller, default=budget)
        _BUDGETS.setdefault(self._batch.model, {})[memory] = budget
