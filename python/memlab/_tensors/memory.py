"""The memory below tensors: where it is, how much it is, and the parts of tensors that have more than one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn

from memlab import _native
from memlab._paging.torch_private import storage_key

# Classes whose objects are plain tensors: their methods are those of torch.Tensor, implemented in C++.
_PLAIN_TYPES = [Tensor, nn.Parameter]
_SPARSE_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
_PER_CHANNEL = (torch.per_channel_affine, torch.per_channel_affine_float_qparams)


def is_fake(tensor: Tensor) -> bool:
    """Whether this is a tensor with which PyTorch traces programs: it has a shape and a device, and no memory."""
    return any(kind.__name__ in ("FakeTensor", "FunctionalTensor") for kind in type(tensor).__mro__)


def with_parts(names: list[str], tensors: list[Tensor]) -> tuple[list[str], list[Tensor]]:
    """Names and tensors, with the parts of tensors in their places."""
    with_names = [(name + suffix, part) for name, whole in zip(names, tensors, strict=True) for suffix, part in parts(whole)]
    return [name for name, _part in with_names], [part for _name, part in with_names]


def parts(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The tensors that have a tensor's memory, each with what to append to its name.

    A dense tensor is its only part. A sparse one has indices and values, and a wrapper, such as a DTensor or a nested
    tensor, has the tensors that it wraps. Never raises.
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
    """Whether this is one strided array and nothing else."""
    is_strided = type(tensor) in _PLAIN_TYPES and _LAYOUT(tensor) is torch.strided
    return is_strided and not _IS_QUANTIZED(tensor) and not _IS_NESTED(tensor)


def _inner(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    if is_fake(tensor):
        return
    if hasattr(type(tensor), "__tensor_flatten__"):
        attributes, _context = tensor.__tensor_flatten__()  # type: ignore[operator]
        for attribute in attributes:
            part = getattr(tensor, attribute)
            if issubclass(type(part), Tensor):  # A DTensor names its mesh of devices too.
                yield f".{attribute.lstrip('_')}", part
        return
    for method in _SPARSE_PARTS.get(tensor.layout, ()):
        yield f".{method.lstrip('_')}", getattr(tensor, method)()
    if tensor.is_quantized and tensor.qscheme() in _PER_CHANNEL:
        yield "", tensor
        yield ".scales", tensor.q_per_channel_scales()
        yield ".zero_points", tensor.q_per_channel_zero_points()


@dataclass
class TensorMemory:
    """What tensors have below them, a list for each property, in the order of the tensors.

    Tensors with the same `keys` share memory. An address of 0 is no memory: meta tensors, for example.
    """

    devices: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    elements: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)

    def extend(self, more: TensorMemory) -> None:
        """Appends the columns of `more`."""
        for name, column in vars(self).items():
            column.extend(vars(more)[name])


def memory_of_plain(tensors: list[Tensor], is_tracked: bool) -> TensorMemory | None:
    """Reads device, shape, address and bytes of tensors, quickly. None if one of them is not one strided array.

    `is_tracked`: the blocks of CUDA devices are known. Then these are what tensors in them have; for others it is storages.
    """
    columns = _native.plain_tensors(Tensor, _PLAIN_TYPES, UntypedStorage, storage_key, tensors, is_tracked)
    return None if columns is None else TensorMemory(*columns)


def memory_of(tensors: list[Tensor]) -> TensorMemory:
    """Reads device, shape, address and bytes of tensors. Never raises; what cannot be read has no memory."""
    memory = TensorMemory()
    for tensor in tensors:
        memory.extend(_memory_of_any(tensor))
    return memory


def _memory_of_any(tensor: Tensor) -> TensorMemory:
    quick = memory_of_plain([tensor], is_tracked=False)
    if quick is not None:
        return quick
    with torch._C.DisableTorchFunctionSubclass():
        shape = _or(lambda: _text(tensor.size()), "(ragged)")
        elements = _or(lambda: int(Tensor.numel(tensor)), 0) if not is_fake(tensor) else 0
        device = _or(lambda: str(_DEVICE(tensor)), "unknown") if not is_fake(tensor) else "meta"
        address, nbytes = 0, 0
        if device != "meta":
            address, nbytes = _or(lambda: _storage(tensor), (0, 0))
    return TensorMemory([device], [shape], [elements], [address or -id(tensor)], [address], [nbytes])


def _storage(tensor: Tensor) -> tuple[int, int]:
    if tensor.is_mkldnn:  # In a form of oneDNN's own, which has no storage.
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
