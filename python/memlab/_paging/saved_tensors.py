"""Backward through frozen weights that come and go: what autograd would save of them is noted, and read again then."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from memlab._paging.paged_tensor import Weight, all_bytes, version_of, view_of


@dataclass
class _Saved:
    """A view of a weight, as autograd wanted to save it."""

    name: str
    storage: torch.UntypedStorage  # The weight's bytes in the arena.
    versions: list[tuple[weakref.ref[Tensor], int]]  # Of its tensors: an edit before the backward would falsify it.
    dtype: torch.dtype
    byte_offset: int
    shape: torch.Size
    stride: tuple[int, ...]


@dataclass
class _Theirs:
    """What hooks that were there before ours (checkpointing, offloading) made of a tensor."""

    packed: Any
    unpack: Callable[[Any], Tensor]


class SavedWeights(torch.autograd.graph.saved_tensors_hooks):
    """Keeps views of paged weights out of autograd's hands: their memory holds something else in the backward.

    Where others hook what is saved (in the recomputation of a checkpointed block, say) everything goes on to them, weights
    as copies.
    """

    def __init__(self, weights: list[Weight], device: torch.device) -> None:
        super().__init__(self._pack, self._unpack)
        self.device = device
        self.thread = threading.local()
        self.by_storage: dict[int, Weight] = {}
        for weight in weights:
            for home in weight.homes:
                for form in (home.here, home.resting):
                    if form is not None:
                        self.by_storage[form.untyped_storage()._cdata] = weight

    def __enter__(self) -> None:
        self.thread.__dict__.setdefault("before", []).append(torch._C._autograd._top_saved_tensors_default_hooks(True))
        super().__enter__()

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self.thread.before.pop()

    def _pack(self, tensor: Tensor) -> Tensor | _Saved | _Theirs:
        weight = self._weight(tensor)
        theirs = self.thread.before[-1]
        if theirs is not None:
            pack, unpack = theirs
            if weight is not None:
                # Of the view not even this frame keeps a reference: checkpointing ends here with an exception.
                tensor = tensor.clone()
            return _Theirs(pack(tensor), unpack)
        if weight is None or weight.in_arena is None:
            return tensor
        start = tensor.storage_offset() * tensor.element_size()
        return _Saved(weight.name, weight.in_arena, _versions(weight), tensor.dtype, start, tensor.shape, tensor.stride())

    def _unpack(self, saved: Tensor | _Saved | _Theirs) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        if isinstance(saved, _Theirs):
            return saved.unpack(saved.packed)
        edited = (home() for home, version in saved.versions if (there := home()) is None or version_of(there) != version)
        if any(tensor is not None for tensor in edited):
            raise RuntimeError(
                f"{saved.name} was edited in place between a forward and its backward, whose gradient would be wrong"
            )
        storage = saved.storage
        if self.device.type != "cpu":
            storage = all_bytes(storage).to(self.device).untyped_storage()
        return view_of(storage, saved.dtype, saved.byte_offset // saved.dtype.itemsize, saved.shape, saved.stride)

    def _weight(self, tensor: Tensor) -> Weight | None:
        try:
            return self.by_storage.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):
            return None


def _versions(weight: Weight) -> list[tuple[weakref.ref[Tensor], int]]:
    return [(weakref.ref(home.tensor), version_of(home.tensor)) for home in weight.homes]
