"""Backward through frozen weights: autograd saves the place of a weight in the arena, and reads its bytes later.

A saved view of device memory would contain another weight's bytes by the time of the backward.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from memlab._paging.paged_tensor import Weight
from memlab._paging.tensor_memory import all_bytes, view_of
from memlab._paging.torch_private import saved_tensor_hooks, storage_key, tensor_key, version_of


@dataclass
class _SavedView:
    """A view of a weight that autograd saves."""

    name: str
    storage: torch.UntypedStorage  # The weight's bytes in the arena.
    device: torch.device
    versions: list[tuple[weakref.ref[Tensor], int]]  # Of its tensors: an edit before the backward would falsify it.
    dtype: torch.dtype
    byte_offset: int
    shape: torch.Size
    stride: tuple[int, ...]


@dataclass
class _PackedByOthers:
    """A tensor packed by hooks that were installed earlier (checkpointing, offloading)."""

    packed: Any
    unpack: Callable[[Any], Tensor]


class SavedTensors(torch.autograd.graph.saved_tensors_hooks):
    """Replaces views of paged weights that autograd saves by their places in the arena.

    Other hooks of saved tensors (such as those of a checkpointed block) receive every tensor, and weights as copies.
    """

    def __init__(self, weights: list[Weight], device: torch.device) -> None:
        super().__init__(self._pack, self._unpack)
        self.thread_state = threading.local()
        self.by_storage: dict[int | None, tuple[Weight, torch.device]] = {}
        for weight in weights:
            for paged in weight.tensors:
                for form in (paged.on_device, paged.unloaded):
                    if form is not None:
                        self.by_storage[storage_key(form.untyped_storage())] = weight, device

    @classmethod
    def joined(cls, several: list[SavedTensors]) -> SavedTensors:
        """Joins the hooks for the weights of several devices into one.

        Separate hooks would treat each other as foreign.
        """
        one = cls([], torch.device("cpu"))
        for each in several:
            one.by_storage |= each.by_storage
        return one

    def __enter__(self) -> None:
        self.thread_state.__dict__.setdefault("before", []).append(saved_tensor_hooks())
        super().__enter__()

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self.thread_state.before.pop()

    def _pack(self, tensor: Tensor) -> Tensor | _SavedView | _PackedByOthers:
        weight, device = self.by_storage.get(tensor_key(tensor), (None, None))
        others = self.thread_state.before[-1]
        if others is not None:
            pack, unpack = others
            if weight is not None:
                # Rebound, so that this frame keeps no view: checkpointing ends here with an exception.
                tensor = tensor.clone()
            return _PackedByOthers(pack(tensor), unpack)
        if weight is None or device is None or weight.arena_storage is None:
            return tensor
        start = tensor.storage_offset() * tensor.element_size()
        versions = [(weakref.ref(paged.tensor), version_of(paged.tensor)) for paged in weight.tensors]
        return _SavedView(
            weight.name, weight.arena_storage, device, versions, tensor.dtype, start, tensor.shape, tensor.stride()
        )

    def _unpack(self, saved: Tensor | _SavedView | _PackedByOthers) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        if isinstance(saved, _PackedByOthers):
            return saved.unpack(saved.packed)
        for reference, version in saved.versions:
            tensor = reference()
            if tensor is not None and version_of(tensor) != version:
                raise RuntimeError(
                    f"{saved.name} was edited in place between a forward and its backward, whose gradient would be wrong"
                )
        storage = saved.storage
        if saved.device.type != "cpu":
            storage = all_bytes(storage).to(saved.device).untyped_storage()
        return view_of(storage, saved.dtype, saved.byte_offset // saved.dtype.itemsize, saved.shape, saved.stride)
