"""Moves arguments and results of a forward to the device where it runs, and back."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def to_device(value: Any, device: torch.device) -> Any:
    """Returns the value with its tensors on the device.

    Tensors without dimensions stay where they are, because PyTorch accepts them.
    """
    return with_tensors(value, lambda tensor: tensor if tensor.device == device or tensor.dim() == 0 else tensor.to(device))


def with_tensors(value: Any, moved: Callable[[Tensor], Tensor]) -> Any:
    """Returns the value with `moved` applied to its tensors, in containers and dataclasses.

    A container with nothing to move is returned itself, so that a model can fill its caller's list or dictionary.
    """
    if isinstance(value, Tensor):
        return moved(value)
    if isinstance(value, dict):
        entries = {key: with_tensors(entry, moved) for key, entry in value.items()}
        if all(entries[key] is entry for key, entry in value.items()):
            return value
        if type(value) is dict:
            return entries
        # OrderedDict and other subclasses, such as transformers' model outputs, whose entries are attributes too.
        result = copy.copy(value)
        for key, entry in entries.items():
            result[key] = entry
        return result
    if isinstance(value, (list, tuple)):
        several = [with_tensors(entry, moved) for entry in value]
        if all(new is old for new, old in zip(several, value, strict=True)):
            return value
        return type(value)(*several) if hasattr(value, "_fields") else type(value)(several)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        parts = {name: with_tensors(entry, moved) for name, entry in changes.items()}
        return value if all(parts[name] is changes[name] for name in changes) else dataclasses.replace(value, **parts)
    return value


def with_replaced(value: Any, others: dict[int, Tensor]) -> Any:
    """Replaces the tensors of a result whose ids are keys of `others`, in the outermost container."""
    if isinstance(value, Tensor):
        return others.get(id(value), value)
    if type(value) in (list, tuple) and any(id(entry) in others for entry in value):
        return type(value)(others.get(id(entry), entry) for entry in value)
    if isinstance(value, dict) and any(id(entry) in others for entry in value.values()):
        result = copy.copy(value)
        for key, entry in value.items():
            result[key] = others.get(id(entry), entry)
        return result
    return value


def device_of_first(value: Any) -> torch.device | None:
    """Returns the device of the first tensor among the arguments."""
    if isinstance(value, Tensor):
        return value.device
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return None
    return next((found for entry in value if (found := device_of_first(entry)) is not None), None)
