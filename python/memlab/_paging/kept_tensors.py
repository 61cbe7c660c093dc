"""Tensors that a forward leaves in its caller's objects, such as a KV cache, by the module that computed them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from memlab._paging.tensor_memory import move_together
from memlab._paging.torch_private import OperationMode, storage_key, tree_leaves
from memlab._paging.tracing import tensors_in

# Largest number of objects to search among the arguments.
_MOST_OBJECTS = 100_000


class KeptTensors(OperationMode):
    """Records, while active, the tensors computed from other tensors, and the module that computed each."""

    def __init__(self, module: Callable[[], nn.Module]) -> None:
        """`module`: returns the module being called."""
        super().__init__()
        self._module = module
        self._made: dict[int, tuple[ref[Tensor], nn.Module]] = {}

    supports_higher_order_operators = True

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        # (A table computed without tensors stays on the CPU in a model on a GPU too.)
        if any(isinstance(leaf, Tensor) for leaf in tree_leaves((args, kwargs))):
            for tensor in tensors_in(result):
                self._made[id(tensor)] = ref(tensor), self._module()
        return result

    def move(self, device: torch.device, modules: Collection[nn.Module], given: Any, result: Any) -> None:
        """Moves, in place, tensors that these modules computed and that are still referenced.

        Excludes the caller's tensors and those of the result.
        """
        known = {id(tensor) for tensor in tensors_in((given, result))}
        found: dict[int, list[Tensor]] = {}
        for reference, module in self._made.values():
            tensor = reference()
            if tensor is None or id(tensor) in known or module not in modules:
                continue
            if tensor.dim() > 0 and tensor.device != device:
                found.setdefault(storage_key(tensor.untyped_storage()), []).append(tensor)
        self._made.clear()
        for tensors in found.values():
            move_together(tensors, device)
        if found:
            _note_device(given, {id(tensor) for tensors in found.values() for tensor in tensors}, device)


def _note_device(given: Any, moved: set[int], device: torch.device) -> None:
    """Updates the device in objects that store it beside moved tensors, as layers of transformers' caches do."""
    waiting, seen = [given], set[int]()
    while waiting and len(seen) < _MOST_OBJECTS:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, (Tensor, nn.Module, type)):
            continue
        seen.add(id(value))
        if isinstance(value, (list, tuple)):
            waiting += value
            continue
        attributes = value if isinstance(value, dict) else _attributes(value)
        waiting += attributes.values()
        if any(id(attribute) in moved for attribute in attributes.values()):
            attributes |= {name: device for name, other in attributes.items() if type(other) is torch.device}


def _attributes(value: Any) -> dict[str, Any]:
    """Returns an object's own attributes, without calling its class."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}
