"""Names of tensors: those of a model's parameters and buffers and of an optimizer's state, and numbers for the rest."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn


class TensorNames:
    """Names that stay the same from one report to the next, and are kept no longer than their tensors."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        self._numbered = 0

    def known(self, tensor: Tensor) -> str | None:
        """The name that this tensor was given, if it was. A tensor with the address of one that is gone has none."""
        entry = self._names.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def give(self, tensor: Tensor, name: str) -> None:
        """Names a tensor, or renames it."""
        self._names[id(tensor)] = (weakref.ref(tensor), name)

    def numbered(self, tensor: Tensor) -> str:
        """The tensor's name; one that has none is given the next number."""
        name = self.known(tensor)
        if name is None:
            name = f"{type(tensor).__name__}{self._numbered}"
            self._numbered += 1
            self.give(tensor, name)
        return name

    def forget_dead(self) -> None:
        """Drops the names of tensors that are gone."""
        self._names = {key: entry for key, entry in self._names.items() if entry[0]() is not None}


def model_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters, buffers, and tensors that are plain attributes of the modules, each once.

    A tensor that has several names, as tied weights do, has all of them, joined by ``+``.
    """
    names: dict[int, list[str]] = {}
    tensors: dict[int, Tensor] = {}
    for name, tensor in _named(model):
        if id(tensor) not in tensors:
            tensors[id(tensor)], names[id(tensor)] = tensor, []
        if name not in names[id(tensor)]:
            names[id(tensor)].append(name)
    return [("+".join(names[key]), tensor) for key, tensor in tensors.items()]


def _named(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)
    for path, module in model.named_modules():
        for attribute, value in list(vars(module).items()):
            if issubclass(type(value), Tensor):
                yield f"{path}.{attribute}" if path else attribute, value


def optimizer_tensors(optimizer: Any) -> Iterator[tuple[Tensor | None, str, Tensor]]:
    """Each tensor of an optimizer's state: the parameter that it belongs to, what it is, and itself.

    What belongs to no parameter, such as a learning rate that is a tensor, has None.
    """
    for parameter, state in list(getattr(optimizer, "state", {}).items()):
        owner = parameter if issubclass(type(parameter), Tensor) else None
        for what, tensor in _nested(state, "" if owner is not None else str(parameter)):
            yield owner, what, tensor
    for index, group in enumerate(list(getattr(optimizer, "param_groups", ()))):
        options = {key: value for key, value in group.items() if key != "params"}
        for what, tensor in _nested(options, f"param_groups.{index}"):
            yield None, what, tensor


def _nested(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    if issubclass(type(value), Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, entry in list(value.items()):
            yield from _nested(entry, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for index, entry in enumerate(value):
            yield from _nested(entry, f"{path}.{index}" if path else str(index))


def gradients_of(tensors: list[Tensor]) -> list[Tensor | None]:
    """The ``.grad`` of each tensor. PyTorch warns when it is read of a tensor that cannot have one, so it is not."""
    return [
        _GRAD(tensor) if is_leaf or _RETAINS_GRAD(tensor) else None
        for tensor, is_leaf in zip(tensors, map(_IS_LEAF, tensors), strict=True)
    ]


# Properties of tensors, as functions that `map` calls without a frame of Python.
_GRAD: Any = Tensor.grad.__get__  # type: ignore[attr-defined]
_IS_LEAF: Any = Tensor.is_leaf.__get__  # type: ignore[attr-defined]
_RETAINS_GRAD: Any = Tensor.retains_grad.__get__  # type: ignore[attr-defined]
