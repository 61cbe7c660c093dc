"""The memory below tensors: where it is, how much it is, and the parts of tensors that have more than one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn

# Classes whose objects are plain tensors: their methods are those of torch.Tensor, implemented in C++.
_PLAIN_TYPES = {Tensor, nn.Parameter}
_SPARSE_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
_IN_CACHE = 256  # So many tensors are read at a time, because a processor's cache has room for them.
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


def memory_of_plain(tensors: list[Tensor]) -> TensorMemory | None:
    """Reads device, shape, address and bytes of tensors, quickly. None if one of them is not one strided array."""
    memory = TensorMemory()
    for first in range(0, len(tensors), _IN_CACHE):
        some = tensors[first : first + _IN_CACHE]
        if not set(map(type, some)) <= _PLAIN_TYPES or any(map(_IS_QUANTIZED, some)):
            return None
        try:
            memory.extend(_memory_of_plain(some))
        except (RuntimeError, NotImplementedError):  # One of them has no storage or no shape.
            return None
    return memory


def memory_of(tensors: list[Tensor]) -> TensorMemory:
    """Reads device, shape, address and bytes of tensors. Never raises; what cannot be read has no memory."""
    memory = TensorMemory()
    for tensor in tensors:
        memory.extend(_memory_of_any(tensor))
    return memory


def _memory_of_plain(tensors: list[Tensor]) -> TensorMemory:
    storages = list(map(Tensor.untyped_storage, tensors))  # Raises for sparse tensors.
    addresses = list(map(UntypedStorage.data_ptr, storages))
    nbytes = list(map(UntypedStorage.nbytes, storages))
    keys = addresses
    if 0 in addresses:
        keys = [address or -storage._cdata for address, storage in zip(addresses, storages, strict=True)]
        nbytes = [size if address else 0 for address, size in zip(addresses, nbytes, strict=True)]
    shapes = list(map(Tensor.size, tensors))
    texts = {shape: _text(shape) for shape in set(shapes)}
    devices = list(map(_DEVICE, tensors))
    names = {device: str(device) for device in set(devices)}
    return TensorMemory(
        devices=list(map(names.__getitem__, devices)),
        shapes=list(map(texts.__getitem__, shapes)),
        elements=list(map(Tensor.numel, tensors)),
        keys=keys,
        addresses=addresses,
        nbytes=nbytes,
    )


def _memory_of_any(tensor: Tensor) -> TensorMemory:
    quick = memory_of_plain([tensor])
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
