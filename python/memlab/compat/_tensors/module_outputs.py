"""The tensors in the outputs of modules, and their memory that is still live."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from memlab._tools.safe_classes import is_kind


def tensors_in(value: Any, depth: int = 8) -> Iterator[Tensor]:
    """Yields every tensor in nested tuples, lists, dictionaries and dataclasses."""
    if is_kind(value, Tensor):
        yield value
    elif depth == 0:
        return
    elif is_kind(value, dict):
        for entry in list(dict.values(value)):
            yield from tensors_in(entry, depth - 1)
    elif any(is_kind(value, kind) for kind in (list, tuple, set, frozenset)):
        for entry in list(value):
            yield from tensors_in(entry, depth - 1)
    elif not is_kind(value, type) and is_dataclass(type(value)):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name, None), depth - 1)


class LiveStorages:
    """Memory of tensors by the layer that created them, counted while it is live. Keeps none of it alive."""

    def __init__(self) -> None:
        self._storages: dict[int, tuple[StorageWeakRef, str, int]] = {}

    def add(self, layer: str, tensor: Tensor) -> None:
        """Counts a tensor's memory for a layer, if it is not counted yet."""
        for storage in _storages_of(tensor):
            reference = StorageWeakRef(storage)
            if reference.cdata not in self._storages:
                self._storages[reference.cdata] = (reference, layer, storage.nbytes())

    def leave_out(self, tensor: Tensor) -> None:
        """Excludes a tensor's memory from the count, such as a parameter's, which a module can return too."""
        for storage in _storages_of(tensor):
            reference = StorageWeakRef(storage)
            self._storages[reference.cdata] = (reference, "", 0)

    def by_layer(self) -> dict[str, int]:
        """Returns the live bytes by layer."""
        sums: dict[str, int] = {}
        self._storages = {key: entry for key, entry in self._storages.items() if not entry[0].expired()}
        for _reference, layer, nbytes in self._storages.values():
            if nbytes:
                sums[layer] = sums.get(layer, 0) + nbytes
        return sums

    def clear(self) -> None:
        """Removes all entries."""
        self._storages.clear()


def tensor_nbytes(tensor: Tensor) -> int:
    """Returns the bytes of the elements of a tensor; for a sparse one, of its indices and values."""
    from memlab.compat._tensors.memory import parts

    total = 0
    for _suffix, part in parts(tensor):
        try:
            total += part.numel() * part.element_size()
        except Exception:  # A parameter of a lazy module has no size before the first forward.
            continue
    return total


def _storages_of(tensor: Tensor) -> Iterator[torch.UntypedStorage]:
    from memlab.compat._tensors.memory import parts

    for _suffix, part in parts(tensor):
        try:
            if not part.is_meta:
                yield part.untyped_storage()
        except Exception:  # Tensors of functorch and of other libraries can have none.
            continue
