"""Tensors with names: a model's parameters and buffers, and the state of optimizers."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from memlab import _native


def optimizers_of(model: nn.Module | None, but: list[Optimizer]) -> list[Optimizer]:
    """Finds the optimizers of a model's parameters, except those in `but`."""
    if model is None:
        return []
    parameters = {id(parameter) for parameter in model.parameters()}
    known = {id(optimizer) for optimizer in but}
    found = []
    for candidate in gc.get_objects():
        # The type, because an object can claim any class.
        if not issubclass(type(candidate), Optimizer) or id(candidate) in known:
            continue
        try:
            # A wrapper, such as that of Accelerate, has the optimizer as an attribute.
            is_wrapper = any(isinstance(value, Optimizer) for value in vars(candidate).values())
            given = [parameter for group in candidate.param_groups for parameter in group["params"]]
        except Exception:  # An optimizer of somebody else may raise anything.
            continue
        if not is_wrapper and any(id(parameter) in parameters for parameter in given):
            found.append(candidate)
    return found


def name_tensors(known: _native.TensorNames, model: nn.Module | None, optimizers: Iterable[Any]) -> list[Tensor]:
    """Names the tensors of a model and of optimizers, and returns them, each once.

    Tensors of a model are its parameters, its buffers, and tensors that are plain attributes of the modules. A tensor with
    several names, such as a tied weight, gets all of them, joined by ``+``. State is named after the class of the optimizer
    and its parameter: ``Adam.weight.exp_avg``.
    """
    named = known.give_model(model, nn.Module, Tensor) if model is not None else []
    classes: dict[str, int] = {}
    for optimizer in optimizers:
        label = type(optimizer).__name__
        classes[label] = classes.get(label, 0) + 1
        if classes[label] > 1:
            label += str(classes[label])
        known.give_state(label, optimizer, Tensor, named)
    return named
