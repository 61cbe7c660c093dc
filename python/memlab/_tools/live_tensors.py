"""The tensors that Python's garbage collector knows of, and which of them Python itself still holds."""

from __future__ import annotations

import gc
import sys
from functools import cache
from typing import Any

import torch
from torch import Tensor

from memlab import _native


def live_tensors() -> list[Tensor]:
    """Every tensor object of the process, the oldest first."""
    kinds = list(tensor_types())
    # By type and not by isinstance: a proxy of an object that is gone, or a lazy one, answers isinstance with an exception.
    return [tensor for age in (2, 1, 0) for tensor in _native.of_types(gc.get_objects(age), kinds)]


def tensor_types() -> set[type]:
    """torch.Tensor and all classes derived from it."""
    kinds: set[type] = set()
    fresh: list[type] = [Tensor]
    while fresh:
        kind = fresh.pop()
        if kind not in kinds:
            kinds.add(kind)
            fresh += type.__subclasses__(kind)
    return kinds


def held_by_pytorch_alone(tensors: list[Tensor]) -> list[bool]:
    """Which of these tensors no Python object refers to: PyTorch keeps them, as autograd does for backward.

    PyTorch keeps the Python object of a tensor alive while its C++ code holds the tensor. `tensors` has to be the only list
    that they are in. All are False with versions of PyTorch whose reference counts do not tell, such as 2.4.
    """
    if not _reference_counts_tell():
        return [False] * len(tensors)
    unreferenced = next(map(sys.getrefcount, [torch.empty(0, device="cpu")]))
    # The C++ code has one reference to the object, however many holders of the tensor it has.
    counts, uses = map(sys.getrefcount, tensors), map(_USE_COUNT, tensors)
    return [count == unreferenced + 1 and held > 1 for count, held in zip(counts, uses, strict=True)]


@cache
def _reference_counts_tell() -> bool:
    """Whether a tensor that C++ code holds has one more reference to its Python object."""
    held, holder = torch.empty(0, device="cpu"), torch.empty(0, device="cpu")
    before = sys.getrefcount(held)
    holder.grad = held
    return sys.getrefcount(held) == before + 1


_USE_COUNT: Any = Tensor._use_count  # type: ignore[attr-defined]
