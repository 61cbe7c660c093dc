"""Arguments and results of a forward, brought to the device where it runs."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import Tensor


def moved(value: Any, device: torch.device) -> Any:
    """The same with its tensors on the device. Scalars may stay where they are, as PyTorch allows it.

    What holds nothing that has to move is itself: a list or dictionary that a model fills stays the caller's.
    """
    if isinstance(value, Tensor):
        return value if value.device == device or value.dim() == 0 else value.to(device)
    if isinstance(value, dict):
        entries = {key: moved(entry, device) for key, entry in value.items()}
        if all(entries[key] is entry for key, entry in value.items()):
            return value
        if type(value) is dict:
            return entries
        # OrderedDict and its kin, among them what transformers' models return, whose entries are attributes as well.
        there = copy.copy(value)
        for key, entry in entries.items():
            there[key] = entry
        return there
    if isinstance(value, (list, tuple)):
        parts = [moved(entry, device) for entry in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changes = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        there = {name: moved(entry, device) for name, entry in changes.items()}
        return value if all(there[name] is changes[name] for name in changes) else dataclasses.replace(value, **there)
    return value


def exchanged(value: Any, others: dict[int, Tensor]) -> Any:
    """A result in which certain tensors, known by their ids, are others."""
    if isinstance(value, Tensor):
        return others.get(id(value), value)
    if type(value) in (list, tuple) and any(id(entry) in others for entry in value):
        return type(value)(others.get(id(entry), entry) for entry in value)
    if isinstance(value, dict) and any(id(entry) in others for entry in value.values()):
        there = copy.copy(value)
        for key, entry in value.items():
            there[key] = others.get(id(entry), entry)
        return there
    return value


def device_of_first(value: Any) -> torch.device | None:
    """Where the first tensor among the arguments is."""
    if isinstance(value, Tensor):
        return value.device
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return None
    return next((found for entry in value if (found := device_of_first(entry)) is not None), None)
