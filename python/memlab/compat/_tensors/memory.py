"""The memory of tensors: address, size, and the parts of tensors that have more than one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn

from memlab import _native
from memlab._paging.torch_private import storage_key
from memlab._tools.safe_classes import bases, class_name, is_kind

# Classes whose objects are plain tensors: their methods are those of torch.Tensor, implemented in C++.
_PLAIN_TYPES: list[type] = [Tensor, nn.Parameter]
_SPARSE_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
_PER_CHANNEL = (torch.per_channel_affine, torch.per_channel_affine_float_qparams)


def is_fake(tensor: Tensor) -> bool:
    """Returns True for a tensor with which PyTorch traces programs: it has a shape and a device, and no memory."""
    return any(class_name(kind) in ("FakeTensor", "FunctionalTensor") for kind in bases(type(tensor)))


def parts(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors that own a tensor's memory, each with a suffix for its name.

    A dense tensor is its only part. A sparse one has indices and values. A wrapper, such as a DTensor or a nested tensor,
    has the tensors that it wraps. Never raises.
    """
    if _is_plain(tensor):
        yield "", tensor
        return
    try:
        inner = list(_inner(tensor))
    except Exception:  # Tensors of other libraries can raise anything.
        inner = []
    for suffix, part in inner or [("", tensor)]:
        if part is tensor:
            yield suffix, part
        else:
            yield from ((suffix + deeper, leaf) for deeper, leaf in parts(part))


def _is_plain(tensor: Tensor) -> bool:
    """Returns True if this is exactly one strided array."""
    is_strided = any(type(tensor) is kind for kind in _PLAIN_TYPES) and _LAYOUT(tensor) is torch.strided
    return is_strided and not _IS_QUANTIZED(tensor) and not _IS_NESTED(tensor)


def _inner(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    if is_fake(tensor):
        return
    if hasattr(type(tensor), "__tensor_flatten__"):
        attributes, _context = tensor.__tensor_flatten__()  # type: ignore[operator]
        for attribute in attributes:
            part = getattr(tensor, attribute)
            if is_kind(part, Tensor):  # A DTensor also lists its mesh of devices.
                yield f".{attribute.lstrip('_')}", part
        return
    for method in _SPARSE_PARTS.get(_LAYOUT(tensor), ()):
        yield f".{method.lstrip('_')}", getattr(tensor, method)()
    if _IS_QUANTIZED(tensor) and tensor.qscheme() in _PER_CHANNEL:
        yield "", tensor
        yield ".scales", tensor.q_per_channel_scales()
        yield ".zero_points", tensor.q_per_channel_zero_points()


def memory_of_other(tensor: Tensor) -> tuple[str, str, int, int, int]:
    """Returns device, shape, elements, address and bytes of a tensor that is not one strided array.

    Never raises. Unreadable memory has size 0 and address 0.
    """
    with torch._C.DisableTorchFunctionSubclass():
        shape = _or(lambda: _text(tensor.size()), "(ragged)")
        elements = _or(lambda: int(Tensor.numel(tensor)), 0) if not is_fake(tensor) else 0
        device = _or(lambda: str(_DEVICE(tensor)), "unknown") if not is_fake(tensor) else "meta"
        address, nbytes = 0, 0
        if device != "meta":
            address, nbytes = _or(lambda: _storage(tensor), (0, 0))
    return device, shape, elements, address, nbytes


def _storage(tensor: Tensor) -> tuple[int, int]:
    if tensor.is_mkldnn:  # oneDNN's own form, which has no storage.
        return 0, tensor.numel() * tensor.element_size()
    storage = Tensor.untyped_storage(tensor)
    address = storage.data_ptr()
    return address, storage.nbytes() if address else 0


def _text(shape: Any) -> str:
    # A scalar is shown as one element, as pytorch_memlab does.
    return str(tuple(shape)) if len(shape) else "(1,)"


def _or(read: Any, otherwise: Any) -> Any:
    try:
        return read()
    except Exception:  # Tensors of other libraries can raise anything.
        return otherwise


# Properties of tensors, as functions that `map` calls without a frame of Python.
_LAYOUT: Any = Tensor.layout.__get__  # type: ignore[attr-defined]
_IS_QUANTIZED: Any = Tensor.is_quantized.__get__  # type: ignore[attr-defined]
_IS_NESTED: Any = Tensor.is_nested.__get__  # type: ignore[attr-defined]
_DEVICE: Any = Tensor.device.__get__  # type: ignore[attr-defined]

# Reads all tensors of a report.
READER = _native.TensorReader(Tensor, _PLAIN_TYPES, UntypedStorage, storage_key, parts, memory_of_other)
