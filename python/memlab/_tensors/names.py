"""Names of tensors: those of a model's parameters and buffers and of an optimizer's state, and numbers for the rest."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from memlab import _native


class TensorNames:
    """Names that stay the same from one report to the next, and are kept no longer than their tensors."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[weakref.ref[Tensor], str]] = {}
        self._numbered = 0
        self._most = 1000  # Names, with those of tensors that are gone, before the latter are dropped.

    def give(self, tensor: Tensor, name: str) -> tuple[weakref.ref[Tensor], str]:
        """Names a tensor, or renames it."""
        entry = self._names[id(tensor)] = (weakref.ref(tensor), name)
        return entry

    def of(self, tensors: list[Tensor]) -> list[str]:
        """The names of tensors. Those that have none are given the next numbers."""
        names = []
        for tensor in tensors:
            entry = self._names.get(id(tensor))
            if entry is None or entry[0]() is not tensor:  # A new one, perhaps with the address of one that is gone.
                entry = self.give(tensor, f"{type(tensor).__name__}{self._numbered}")
                self._numbered += 1
            names.append(entry[1])
        return names

    def forget_dead(self) -> None:
        """Drops the names of tensors that are gone, if they can be many."""
        if len(self._names) > self._most:
            self._names = {key: entry for key, entry in self._names.items() if entry[0]() is not None}
            self._most = 2 * len(self._names) + 1000


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


def optimizer_tensors(optimizer: Any) -> Iterator[tuple[Tensor | None, list[tuple[str, Tensor]]]]:
    """The tensors of an optimizer's state with what each is, by the parameter that they belong to.

    What belongs to no parameter, such as a learning rate that is a tensor, has None.
    """
    for parameter, state in list(getattr(optimizer, "state", {}).items()):
        if issubclass(type(parameter), Tensor):
            yield parameter, list(_nested(state, ""))
        else:
            yield None, list(_nested(state, str(parameter)))
    for index, group in enumerate(list(getattr(optimizer, "param_groups", ()))):
        options = {key: value for key, value in group.items() if key != "params"}
        yield None, list(_nested(options, f"param_groups.{index}"))


def _nested(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    if issubclass(type(value), Tensor):
        yield path, value
        return
    entries: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, (list, tuple)):
        entries = enumerate(value)
    for key, entry in entries:
        if not isinstance(entry, (int, float, str)):
            yield from _nested(entry, f"{path}.{key}" if path else str(key))


def gradients_of(tensors: list[Tensor]) -> list[tuple[int, Tensor]]:
    """The gradients of tensors that have one, each with the place of its tensor."""
    return _native.gradients(Tensor, tensors)
