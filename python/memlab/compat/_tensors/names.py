"""The tensors that have names: a model's parameters and buffers, and the state of optimizers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from memlab import _native


def name_tensors(known: _native.TensorNames, model: nn.Module | None, optimizers: Iterable[Any]) -> list[Tensor]:
    """Names the tensors of a model and of optimizers, and returns them, each once.

    Those of a model are its parameters, its buffers, and tensors that are plain attributes of the modules. A tensor that
    has several names, as tied weights do, has all of them, joined by ``+``. State is named after the class of the optimizer
    and the parameter that it belongs to: ``Adam.weight.exp_avg``.
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
