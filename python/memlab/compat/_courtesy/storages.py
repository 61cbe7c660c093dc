"""Finds the CUDA storages that Python can reach: of tensors, their gradients, and tensors saved by autograd.

Nothing is computed or unpacked: saved-tensor hooks (checkpointing, offloading) are not called.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from memlab._paging.torch_private import (
    base_of,
    is_node_type,
    plain_storage,
    saved_by,
    sparse_parts,
    storage_key,
)
from memlab._tools.frozen_objects import warn_of_frozen_objects
from memlab._tools.safe_classes import is_subclass


class ObjectKind(Enum):
    """Kind of a Python object in the search for storages."""

    TENSOR = "tensor"
    STORAGE = "storage"
    NODE = "node of an autograd graph"
    SCRIPT_MODULE = "module of TorchScript, whose tensors Python does not hold"
    GRAPH = "CUDA graph"
    POOL = "memory pool"
    OTHER = "none of these"


class ReachableStorages:
    """The CUDA storages of this process that Python can reach, and obstacles to moving them."""

    def __init__(self) -> None:
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.graphs: list[Any] = []
        self.pools: list[Any] = []


_BASES: tuple[tuple[type, ObjectKind], ...] = (
    (Tensor, ObjectKind.TENSOR),
    (torch.UntypedStorage, ObjectKind.STORAGE),
    (torch.jit.ScriptModule, ObjectKind.SCRIPT_MODULE),
    (torch.cuda.CUDAGraph, ObjectKind.GRAPH),
    *(((torch.cuda.MemPool, ObjectKind.POOL),) if hasattr(torch.cuda, "MemPool") else ()),  # From PyTorch 2.5 on.
)


# Properties of tensors, from the base class: subclasses of the program may override them.
_GRAD_FN: Any = Tensor.grad_fn.__get__  # type: ignore[attr-defined]
_IS_LEAF: Any = Tensor.is_leaf.__get__  # type: ignore[attr-defined]
_RETAINS_GRAD: Any = Tensor.retains_grad.__get__  # type: ignore[attr-defined]
_GRAD: Any = Tensor.grad.__get__  # type: ignore[attr-defined]
_LAYOUT: Any = Tensor.layout.__get__  # type: ignore[attr-defined]


def find_storages() -> ReachableStorages:
    """Searches all objects that Python's garbage collector tracks."""
    warn_of_frozen_objects()
    found = ReachableStorages()
    kinds: dict[int, ObjectKind] = {}  # By the id of the class: its hash may call a metaclass of the program.
    tensors: list[Tensor] = []
    nodes: list[Any] = []
    for thing in gc.get_objects():
        # By type, not with isinstance, which reads `__class__` of proxies: that can raise, or run code.
        cls = type(thing)
        kind = kinds.get(id(cls))
        if kind is None:
            kind = kinds[id(cls)] = _kind_of(cls)
        if kind is ObjectKind.OTHER:
            continue
        if kind is ObjectKind.TENSOR:
            tensors.append(thing)
        elif kind is ObjectKind.STORAGE:
            _add(found, thing)
        elif kind is ObjectKind.NODE:
            nodes.append(thing)
        elif kind is ObjectKind.SCRIPT_MODULE:
            tensors.extend(_script_tensors(thing))
        elif kind is ObjectKind.GRAPH:
            found.graphs.append(thing)
        elif kind is ObjectKind.POOL:
            found.pools.append(thing)
    _follow(found, tensors, nodes)
    return found


def _kind_of(cls: type) -> ObjectKind:
    kinds = (kind for base, kind in _BASES if is_subclass(cls, base))
    return next(kinds, ObjectKind.NODE if is_node_type(cls) else ObjectKind.OTHER)


def _script_tensors(module: Any) -> list[Tensor]:
    try:
        return [*torch.nn.Module.parameters(module), *torch.nn.Module.buffers(module)]
    except (AttributeError, RuntimeError):  # Not initialized yet.
        return []


def _follow(found: ReachableStorages, tensors: list[Tensor], nodes: list[Any]) -> None:
    """Adds the storages of tensors, and of all tensors reachable from them and from nodes of autograd graphs."""
    seen_tensors: set[int] = set()
    # By identity: a node must stay alive, or another gets its id.
    seen_nodes: dict[int, Any] = {}
    kept: list[Tensor] = []
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        while tensors or nodes:
            while tensors:
                tensor = tensors.pop()
                if id(tensor) in seen_tensors:
                    continue
                seen_tensors.add(id(tensor))
                kept.append(tensor)
                for storage in storages_of(tensor):
                    _add(found, storage)
                tensors.extend(_tensors_beside(tensor))
                node = _GRAD_FN(tensor)
                if node is not None:
                    nodes.append(node)
            while nodes:
                node = nodes.pop()
                if id(node) in seen_nodes:
                    continue
                seen_nodes[id(node)] = node
                nodes.extend(_next_nodes(node))
                tensors.extend(saved_by(node))


def _next_nodes(node: Any) -> Iterator[Any]:
    for following, _ in node.next_functions:
        if following is not None:
            yield following


def _tensors_beside(tensor: Tensor) -> Iterator[Tensor]:
    """Yields the gradient of a tensor and the base of a view: C++ may be their only holder."""
    if _IS_LEAF(tensor) or _RETAINS_GRAD(tensor):
        gradient = _GRAD(tensor)
        if gradient is not None:
            yield gradient
    base = base_of(tensor)
    if base is not None:
        yield base


def storages_of(tensor: Tensor) -> Iterable[torch.UntypedStorage]:
    """Returns the storages of a tensor: one, or those of a sparse tensor's indices and values; none without memory."""
    if _LAYOUT(tensor) is torch.strided:
        storage = plain_storage(tensor)
        return () if storage is None else (storage,)
    parts = (plain_storage(part) for part in sparse_parts(tensor))
    return [storage for storage in parts if storage is not None]


def _add(found: ReachableStorages, storage: torch.UntypedStorage) -> None:
    if storage.device.type != "cuda":
        return
    try:
        # Fake tensors and wrappers around other tensors report the GPU as their device, and have no memory there.
        if storage.nbytes() > 0 and storage.data_ptr() != 0:
            found.storages.setdefault(storage_key(storage), storage)
    except (NotImplementedError, RuntimeError):
        return
