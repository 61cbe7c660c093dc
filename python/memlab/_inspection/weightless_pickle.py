"""Pickling a model without its weights.

A tensor is sent as its type, shape and stride, and as a part of a storage with only its size. Tensors that share memory
still do so after unpickling, on the current device there.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, BinaryIO

import torch

from memlab._paging.torch_private import TENSOR_DICTS, storage_key

_DEVICE = "cuda"


class UnpicklableModelError(RuntimeError):
    """An object cannot be sent to another process. The message names it, and the remedy.

    >>> import memlab
    >>> issubclass(memlab.UnpicklableModelError, RuntimeError)
    True
    """


class StorageSize:
    """A storage with only its size; it allocates memory on the device once a tensor needs it."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._storage: torch.UntypedStorage | None = None

    def on_device(self) -> torch.UntypedStorage:
        """The storage, shared by all its tensors."""
        if self._storage is None:
            self._storage = torch.UntypedStorage(self.nbytes, device=_DEVICE)
        return self._storage


def tensor_on_device(
    storage: StorageSize,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
    requires_grad: bool,
    parameter: type[torch.nn.Parameter] | None,
) -> torch.Tensor:
    """A tensor with unknown values. Called by unpickling."""
    with torch.no_grad():
        tensor = torch.empty(0, dtype=dtype, device=_DEVICE).set_(storage.on_device(), offset, shape, stride)
    if parameter is not None:
        return torch.nn.Parameter(tensor, requires_grad)
    return tensor.requires_grad_(requires_grad)


def packed(model: torch.nn.Module, payload: Any, by_value: list[torch.Tensor]) -> bytes:
    """The bytes that `load` reads.

    Args:
        model: the model in the payload. Its tensors are allocated in the order of `model.cuda()`.
        by_value: tensors that are sent with their values, as are tensors on the CPU that no module has registered.

    Raises:
        UnpicklableModelError: part of the payload cannot be pickled, or exists in this process only.
    """
    file = io.BytesIO()
    tensors = registered_tensors(model)
    pickle.dump(sys.path, file)
    try:
        _pickler_class()(file, tensors, by_value).dump((tensors, payload))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UnpicklableModelError(
            f"the model, its batch, loss or optimizer cannot be sent to another process ({error}). Use `memlab plan -- "
            f"python script.py --batch {{batch}}`, which runs a program unchanged"
        ) from error
    return file.getvalue()


def load(file: BinaryIO) -> Any:
    """The packed payload, with its tensors on the device."""
    # Modules are imported from the folders of the other process.
    sys.path[:] = sys.path[:1] + [folder for folder in pickle.load(file) if folder not in sys.path[:1]]
    _, payload = pickle.load(file)
    return payload


def _pickler_class() -> Any:
    """Cloudpickle's pickler, which sends definitions of the main program by value; else Python's pickler."""
    try:
        base: Any = importlib.import_module("cloudpickle").Pickler
    except ImportError:
        base = _PicklerWithoutMain

    class StructurePickler(base):  # type: ignore[misc, unused-ignore]
        def __init__(self, file: BinaryIO, registered: list[torch.Tensor], by_value: list[torch.Tensor]) -> None:
            super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
            self._ways = getattr(self, "dispatch_table", {})
            self._by_value = {id(tensor) for tensor in by_value}
            self._storages: dict[int, StorageSize] = {}
            self._registered = {id(tensor) for tensor in registered}
            self._kept: list[Any] = []  # Kept alive, since ids are reused.

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, torch.nn.Module):
                for name in TENSOR_DICTS:
                    self._registered.update(id(tensor) for tensor in getattr(obj, name).values())
            elif isinstance(obj, torch.Tensor) and self._travels_as_structure(obj):
                return self._structure_of(obj)
            elif isinstance(obj, CodeType) and CodeType in self._ways:
                # Cloudpickle from 3.1.3 on sends code without its file name.
                return in_its_file, (obj.co_filename, self._ways[CodeType](obj))
            return super().reducer_override(obj)

        def _travels_as_structure(self, tensor: torch.Tensor) -> bool:
            if id(tensor) in self._by_value:
                return False
            is_known = storage_key(tensor.untyped_storage()) in self._storages
            return is_known or id(tensor) in self._registered or tensor.device.type != "cpu"

        def _structure_of(self, tensor: torch.Tensor) -> tuple[Any, ...]:
            if tensor.layout != torch.strided:
                raise TypeError(f"the tensor layout {tensor.layout} is not supported")
            storage = tensor.untyped_storage()
            self._kept.append((tensor, storage))
            size = self._storages.setdefault(storage_key(storage), StorageSize(storage.nbytes()))
            parameter = torch.nn.Parameter if isinstance(tensor, torch.nn.Parameter) else None
            form = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.requires_grad)
            return tensor_on_device, (size, *form, parameter)

    return StructurePickler


def in_its_file(name: str, made: tuple[Callable[..., CodeType], tuple[Any, ...]]) -> CodeType:
    """The unpickled code, with the name of its source file."""
    make, parts = made
    return make(*parts).replace(co_filename=name)


class _PicklerWithoutMain(pickle.Pickler):
    """Refuses definitions of the main program: the child is another program, and does not run it again."""

    def reducer_override(self, obj: Any) -> Any:
        if getattr(obj, "__module__", None) == "__main__" and hasattr(obj, "__qualname__"):
            raise pickle.PicklingError(
                f"{obj.__qualname__} is defined in the main program: install cloudpickle, or move it to a module"
            )
        return NotImplemented


def registered_tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    """Parameters and buffers in the order in which `model.cuda()` moves them."""
    tensors: list[torch.Tensor] = []
    for child in model.children():
        tensors += registered_tensors(child)
    own = (tensor for name in TENSOR_DICTS for tensor in getattr(model, name).values())
    return tensors + [tensor for tensor in own if tensor is not None]
