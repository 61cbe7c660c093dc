"""Finds the CUDA storages that Python can reach: of tensors, of their gradients, and of what autograd saved for backward.

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
    plain_storage,
    saved_by,
    sparse_parts,
    storage_key,
)


class Kind(Enum):
    """What a Python object is, as far as the search for storages goes."""

    TENSOR = "tensor"
    STORAGE = "storage"
    NODE = "node of an autograd graph"
    SCRIPT_MODULE = "module of TorchScript, whose tensors Python does not hold"
    GRAPH = "CUDA graph"
    POOL = "memory pool"
    OTHER = "none of these"


class Found:
    """The CUDA storages of this process that Python can reach, and what else stands in the way of moving them."""

    def __init__(self) -> None:
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.graphs: list[Any] = []
        self.pools: list[Any] = []


_BASES: tuple[tuple[type, Kind], ...] = (
    (Tensor, Kind.TENSOR),
    (torch.UntypedStorage, Kind.STORAGE),
    (torch.autograd.graph.Node, Kind.NODE),
    (torch.jit.ScriptModule, Kind.SCRIPT_MODULE),
    (torch.cuda.CUDAGraph, Kind.GRAPH),
    *(((torch.cuda.MemPool, Kind.POOL),) if hasattr(torch.cuda, "MemPool") else ()),  # From PyTorch 2.5 on.
)


def find_storages() -> Found:
    """Searches all objects that Python's garbage collector knows."""
    found = Found()
    kinds: dict[type, Kind] = {}
    tensors: list[Tensor] = []
    nodes: list[Any] = []
    for thing in gc.get_objects():
        # By type, and not with isinstance, which asks proxies for their `__class__`: that can raise, or run code.
        cls = type(thing)
        kind = kinds.get(cls)
        if kind is None:
            kind = kinds[cls] = _kind_of(cls)
        if kind is Kind.OTHER:
            continue
        if kind is Kind.TENSOR:
            tensors.append(thing)
        elif kind is Kind.STORAGE:
            _add(found, thing)
        elif kind is Kind.NODE:
            nodes.append(thing)
        elif kind is Kind.SCRIPT_MODULE:
            tensors.extend(_script_tensors(thing))
        elif kind is Kind.GRAPH:
            found.graphs.append(thing)
        elif kind is Kind.POOL:
            found.pools.append(thing)
    _follow(found, tensors, nodes)
    return found


def _kind_of(cls: type) -> Kind:
    for base, kind in _BASES:
        try:
            if issubclass(cls, base):
                return kind
        except TypeError:  # A metaclass that answers for itself.
            continue
    return Kind.OTHER


def _script_tensors(module: Any) -> list[Tensor]:
    try:
        return [*module.parameters(), *module.buffers()]
    except (AttributeError, RuntimeError):  # Not initialized yet.
        return []


def _follow(found: Found, tensors: list[Tensor], nodes: list[Any]) -> None:
    """Adds the storages of tensors, and of all that can be reached from them and from nodes of autograd graphs."""
    seen_tensors: set[int] = set()
    # By identity: a node must stay alive, or another gets its id.
    seen_nodes: dict[int, Any] = {}
    kept: list[Tensor] = []
    with torch.no_grad():
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
                if tensor.grad_fn is not None:
                    nodes.append(tensor.grad_fn)
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
    """The gradient of a tensor and what it is a view of: C++ can hold them alone."""
    if tensor.is_leaf or tensor.retains_grad:
        gradient = tensor.grad
        if gradient is not None:
            yield gradient
    base = base_of(tensor)
    if base is not None:
        yield base


def storages_of(tensor: Tensor) -> Iterable[torch.UntypedStorage]:
    """The storages of a tensor: one, or those of a sparse tensor's indices and values; none where it has no memory."""
    if tensor.layout is torch.strided:
        storage = plain_storage(tensor)
        return () if storage is None else (storage,)
    parts = (plain_storage(part) for part in sparse_parts(tensor))
    return [storage for storage in parts if storage is not None]


def _add(found: Found, storage: torch.UntypedStorage) -> None:
    if storage.device.type != "cuda":
        return
    try:
        # Fake tensors and wrappers around other tensors say that they are on the GPU, and have no memory there.
        if storage.nbytes() > 0 and storage.data_ptr() != 0:
            found.storages.setdefault(storage_key(storage), storage)
    except (NotImplementedError, RuntimeError):
        return
