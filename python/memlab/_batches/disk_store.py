"""Values of batches on the disk."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from memlab._paging.torch_private import tree_flatten, tree_map_only


class DiskStore:
    """A folder for stored values: a temporary one, removed with this object, or a new one `within` another, which stays.

    >>> folder = DiskStore(None)
    >>> entry = folder.store({"image": torch.ones(2)})
    >>> entry.load()
    {'image': tensor([1., 1.])}
    """

    def __init__(self, within: str | os.PathLike[str] | None) -> None:
        self._count = 0
        if within is None:
            self.path = Path(tempfile.mkdtemp(prefix="memlab-batches-"))
            weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        else:
            Path(within).mkdir(parents=True, exist_ok=True)
            self.path = Path(tempfile.mkdtemp(prefix="batches-", dir=within))

    def store(self, value: Any) -> StoredValue:
        """Writes a value, without graphs."""
        path = self.path / f"{self._count:08}.pt"
        self._count += 1
        torch.save(tree_map_only(Tensor, _alone, value), path)
        return StoredValue(path, self)


class StoredValue:
    """A stored value."""

    def __init__(self, path: Path, folder: DiskStore) -> None:
        self._path = path
        self._folder = folder  # Keeps the folder, which is removed with its last reference.

    def load(self) -> Any:
        """Reads the value. (Unpickling is safe here: memlab alone writes these files; a batch may hold any Python value.)"""
        return torch.load(self._path, weights_only=False)

    def drop(self) -> None:
        """Removes the file."""
        self._path.unlink(missing_ok=True)


class EpochValues(Sequence[Any]):
    """The values of an epoch's batches, read from the disk on access. None: the value was dropped."""

    def __init__(self) -> None:
        self._entries: list[Any] = []

    def append(self, entry: Any) -> None:
        """Adds a stored or a plain value."""
        self._entries.append(entry)

    def drop(self, index: int) -> None:
        """Forgets a value and removes its file. Later values keep their places."""
        entry, self._entries[index] = self._entries[index], None
        if isinstance(entry, StoredValue):
            entry.drop()

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        entry = self._entries[index]
        if isinstance(entry, list):
            return [_read(one) for one in entry]
        return _read(entry)

    def __repr__(self) -> str:
        return f"<{len(self)} batches>"


def nbytes_of(value: Any) -> int:
    """Bytes of the tensors in a value."""
    leaves, _ = tree_flatten(value)
    return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, Tensor))


def _read(entry: Any) -> Any:
    return entry.load() if isinstance(entry, StoredValue) else entry


def _alone(tensor: Tensor) -> Tensor:
    """Copies a tensor to the host, without the rest of its storage: `torch.save` would write the whole storage of a view."""
    tensor = tensor.detach().cpu()
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor
