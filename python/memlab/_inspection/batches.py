"""Batches of any form: tensors and nested containers of tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def mapped(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The batch with other tensors. Mappings, lists, tuples and named tuples are traversed."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        result: Any = copy.copy(batch)
        for key, value in batch.items():
            result[key] = mapped(value, change)
        return result
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(value, change) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(mapped(value, change) for value in batch)
    return batch


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """The tensors in a batch, in their order."""
    return (tensor for _, tensor in named_tensors(batch))


def named_tensors(batch: Any, name: str = "the batch") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a batch with their names: keys of dicts, numbers in tuples and lists."""
    if isinstance(batch, torch.Tensor):
        yield name, batch
    elif isinstance(batch, (Mapping, list, tuple)):
        for key, value in batch.items() if isinstance(batch, Mapping) else enumerate(batch):
            yield from named_tensors(value, str(key))


def size_of(batch: Any, dimension: int) -> int:
    """The number of rows: those of the first tensor that has the dimension.

    Raises:
        ValueError: no tensor has the dimension, or it has no rows.
    """
    sizes = [tensor.shape[dimension] for tensor in tensors_in(batch) if tensor.ndim > dimension]
    if not sizes or sizes[0] == 0:
        raise ValueError(
            f"the batch has no tensor with rows in dimension {dimension}: pass a tensor, or a dict, tuple or list of tensors"
        )
    return sizes[0]


def length_of(batch: Any, dimension: int) -> tuple[int, list[str]]:
    """The size in a dimension that most tensors have (the first such size, if there is a tie), and the names of these
    tensors.

    Raises:
        ValueError: no tensor has the dimension.
    """
    names: dict[int, list[str]] = {}
    for name, tensor in named_tensors(batch):
        if tensor.ndim > dimension and tensor.shape[dimension] > 0:
            names.setdefault(tensor.shape[dimension], []).append(name)
    if not names:
        raise ValueError(f"the batch has no tensor with a dimension {dimension} for the length: pass length_dim=")
    return max(names.items(), key=lambda found: len(found[1]))


def with_rows(batch: Any, dimension: int, rows: int) -> Any:
    """The batch with this number of rows, on the CPU: the first rows, repeated if they are too few. Tensors without a row
    for each sample stay unchanged. Tensors without values (on the meta device) are filled with zeros."""
    return _resized(batch, dimension, size_of(batch, dimension), rows)


def with_length(batch: Any, dimension: int, length: int) -> Any:
    """The batch with another length (`length_of`), made as in `with_rows`."""
    return _resized(batch, dimension, length_of(batch, dimension)[0], length)


def _resized(batch: Any, dimension: int, size: int, to: int) -> Any:
    def resized(tensor: torch.Tensor) -> torch.Tensor:
        values = torch.zeros_like(tensor, device="cpu") if tensor.is_meta else tensor.detach()
        if tensor.ndim > dimension and tensor.shape[dimension] == size:
            chosen = torch.arange(to, device=values.device) % size
            values = values.index_select(dimension, chosen)
        return values.cpu()

    return mapped(batch, resized)
