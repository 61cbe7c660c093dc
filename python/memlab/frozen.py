"""Backward through frozen weights that come and go: what autograd would save of them is noted, and read again then."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from memlab.weights import Weight, all_bytes


@dataclass
class _Saved:
    """A view of a weight, as autograd wanted to save it."""

    weight: Weight
    dtype: torch.dtype
    byte_offset: int
    shape: torch.Size
    stride: tuple[int, ...]


class SavedWeights(torch.autograd.graph.saved_tensors_hooks):
    """Keeps views of paged weights out of autograd's hands: their memory holds something else in the backward."""

    def __init__(self, weights: list[Weight], device: torch.device) -> None:
        by_storage: dict[int, Weight] = {}
        for weight in weights:
            for home in weight.homes:
                for form in (home.here, home.resting):
                    if form is not None:
                        by_storage[form.untyped_storage()._cdata] = weight

        def pack(tensor: Tensor) -> Tensor | _Saved:
            try:
                weight = by_storage[tensor.untyped_storage()._cdata]
            except (KeyError, NotImplementedError, RuntimeError):
                return tensor
            start = tensor.storage_offset() * tensor.element_size()
            return _Saved(weight, tensor.dtype, start, tensor.shape, tensor.stride())

        def unpack(saved: Tensor | _Saved) -> Tensor:
            if isinstance(saved, Tensor):
                return saved
            assert saved.weight.in_arena is not None
            storage = saved.weight.in_arena
            if device.type != "cpu":
                storage = all_bytes(storage).to(device).untyped_storage()
            empty = torch.empty(0, dtype=saved.dtype, device=device)
            return empty.set_(storage, saved.byte_offset // saved.dtype.itemsize, saved.shape, saved.stride)

        super().__init__(pack, unpack)
