"""Tensors and their memory: views of storages, layouts, and moves of tensors that share one storage."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

Layout = tuple[torch.dtype, Sequence[int], Sequence[int]]  # Type, shape and strides of a tensor.


def layout_of(tensor: Tensor) -> Layout:
    return tensor.dtype, tensor.shape, tensor.stride()


def view_of(
    storage: torch.UntypedStorage, dtype: torch.dtype, offset: int, shape: Sequence[int], stride: Sequence[int]
) -> Tensor:
    """Returns a tensor over existing memory. `offset` counts elements."""
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, tuple(shape), tuple(stride))


def all_bytes(storage: torch.UntypedStorage) -> Tensor:
    """Returns a storage as a tensor of bytes."""
    return view_of(storage, torch.uint8, 0, (storage.nbytes(),), (1,))


def extent(tensor: Tensor) -> tuple[int, int]:
    """Returns the first and the last byte (exclusive) that a tensor uses of its storage."""
    if tensor.numel() == 0:
        return 0, 0
    first = tensor.storage_offset()
    last = first + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return first * tensor.element_size(), last * tensor.element_size()


def is_plain(tensor: Tensor) -> bool:
    """Returns True if a tensor is only strided memory: not sparse, quantized, expanded, or of another subclass."""
    plain = type(tensor) in (Tensor, nn.Parameter, nn.Buffer) and tensor.layout is torch.strided
    if not plain or tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.numel() == 0:
        return False
    # A stride of 0 (expand) puts several elements at one address, which cannot be written to.
    return all(stride > 0 or size == 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def move_together(tensors: list[Tensor], device: torch.device) -> None:
    """Moves tensors over one storage in place. They share one storage afterwards too. Gradients move with them."""
    if not is_plain(tensors[0]):
        for tensor in tensors:
            tensor.data = tensor.detach().to(device)
    else:
        storage = tensors[0].untyped_storage()
        if storage.device == device:
            return
        moved = all_bytes(storage).to(device).untyped_storage()
        for tensor in tensors:
            tensor.data = view_of(moved, tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride())
    for tensor in tensors:
        if tensor.is_leaf and tensor.grad is not None:
            tensor.grad = tensor.grad.to(device)
