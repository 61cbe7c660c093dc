"""The tensors that have names, a model's parameters and buffers and an optimizer's state, and the gradients of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from memlab import _native


def model_tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters, buffers, and tensors that are plain attributes of the modules, each once.

    A tensor that has several names, as tied weights do, has all of them, joined by ``+``.
    """
    found = list(_named(model))
    tensors = {id(tensor): tensor for _name, tensor in found}
    if len(tensors) == len(found):
        return found
    names: dict[int, list[str]] = {key: [] for key in tensors}
    for name, tensor in found:
        if name not in names[id(tensor)]:
            names[id(tensor)].append(name)
    return [("+".join(names[key]), tensor) for key, tensor in tensors.items()]


def _named(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    # A class can have its own way to name its parameters, as FSDP's has.
    if (type(model).named_parameters, type(model).named_buffers) == (nn.Module.named_parameters, nn.Module.named_buffers):
        modules = [(f"{path}." if path else "", module) for path, module in model.named_modules(remove_duplicate=False)]
        for registered in ("_parameters", "_buffers"):
            for prefix, module in modules:
                for name, tensor in list(getattr(module, registered).items()):
                    if tensor is not None:
                        yield prefix + name, tensor
    else:
        yield from model.named_parameters(remove_duplicate=False)
        yield from model.named_buffers(remove_duplicate=False)
    others: set[type] = set()  # Classes of attributes that are no tensors.
    for path, module in model.named_modules():
        attributes = vars(module).copy()
        kinds = set(map(type, attributes.values())) - others
        if kinds:
            others |= {kind for kind in kinds if not issubclass(kind, Tensor)}
        if kinds - others:
            for attribute, value in attributes.items():
                if issubclass(type(value), Tensor):
                    yield f"{path}.{attribute}" if path else attribute, value


def optimizer_states(optimizer: Any) -> Iterator[tuple[Tensor | None, Any, str]]:
    """The parts of an optimizer's state: the parameter that each belongs to, what is in it, and how it is called.

    What belongs to no parameter, such as a learning rate that is a tensor, has None.
    """
    for parameter, state in list(getattr(optimizer, "state", {}).items()):
        if issubclass(type(parameter), Tensor):
            yield parameter, state, ""
        else:
            yield None, state, str(parameter)
    for index, group in enumerate(list(getattr(optimizer, "param_groups", ()))):
        yield None, {key: value for key, value in group.items() if key != "params"}, f"param_groups.{index}"


def optimizer_tensors(optimizer: Any) -> Iterator[tuple[Tensor | None, list[tuple[str, Tensor]]]]:
    """The tensors of an optimizer's state with what each is, by the parameter that they belong to."""
    for parameter, state, path in optimizer_states(optimizer):
        yield parameter, list(tensors_within(state, path))


def tensors_within(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors in nested dictionaries and lists, with the path to each, which begins with `path`."""
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
            yield from tensors_within(entry, f"{path}.{key}" if path else str(key))


def gradients_of(tensors: list[Tensor]) -> list[tuple[int, Tensor]]:
    """The gradients of tensors that have one, each with the place of its tensor."""
    return _native.gradients(Tensor, tensors)
