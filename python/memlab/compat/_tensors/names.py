"""Tensors with names: a model's parameters and buffers, and the state of optimizers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from memlab import _native


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
