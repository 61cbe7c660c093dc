"""The tensors that Python's garbage collector tracks, and the ones that Python itself still holds."""

from __future__ import annotations

import gc
import sys
import sysconfig
import weakref
from functools import cache
from typing import Any

import torch
from torch import Tensor

from memlab import _native
from memlab._paging.torch_private import tensor_use_count
from memlab._tools.frozen_objects import warn_of_frozen_objects


class LiveTensors:
    """Every tensor object of the process.

    The first look goes through all objects. Later ones go through the young objects only. The garbage collector signals that
    it is about to make young objects old ones, and tensors among them are remembered by weak references.
    """

    def __init__(self) -> None:
        self._old: dict[int, weakref.ref[Tensor]] = {}
        self._most = 1000  # Limit of references before those of dead tensors are dropped.
        self._is_following = False

    def __del__(self, callbacks: list[Any] = gc.callbacks) -> None:
        # A default argument outlives the names of modules, which the interpreter clears at its end.
        if self._is_following:
            callbacks.remove(self._follower)

    def all(self) -> list[Tensor]:
        """Returns the tensors, the oldest first."""
        if not self._is_following:
            warn_of_frozen_objects()
            tensors = [tensor for age in (2, 1, 0) for tensor in _tensors_of_age(age)]
            if _COLLECTOR_SAYS:
                self._follow(tensors)
            return tensors
        # The young first: objects that a collection in another thread moves in between are found among the old ones.
        young = _tensors_of_age(1) + _tensors_of_age(0)
        return _native.referents(list(self._old.values()), young)

    def _follow(self, tensors: list[Tensor]) -> None:
        self._remember(tensors)
        known = weakref.ref(self)

        def before_collection(phase: str, details: dict[str, int]) -> None:
            live = known()
            if live is not None and phase == "start" and details["generation"] > 0:
                live._remember(_tensors_of_age(1) + _tensors_of_age(0))

        self._follower = before_collection
        gc.callbacks.append(before_collection)
        self._is_following = True

    def _remember(self, tensors: list[Tensor]) -> None:
        if len(self._old) > self._most:
            self._old = {key: reference for key, reference in list(self._old.items()) if reference() is not None}
            self._most = 2 * len(self._old) + 1000
        self._old.update((id(tensor), weakref.ref(tensor)) for tensor in tensors)


# Before Python 3.14 an object becomes old in collections of generation 1 and 2 and at no other time.
_COLLECTOR_SAYS = sys.version_info < (3, 14) and not sysconfig.get_config_var("Py_GIL_DISABLED")


def _tensors_of_age(generation: int) -> list[Tensor]:
    # By type and not by isinstance: isinstance raises for a proxy of a dead object, or a lazy one.
    return _native.of_types(gc.get_objects(generation), tensor_types())


def tensor_types() -> list[type]:
    """Returns torch.Tensor and all classes derived from it."""
    kinds: dict[int, type] = {}  # By id: the hash of a class may call a metaclass of the program.
    fresh: list[type] = [Tensor]
    while fresh:
        kind = fresh.pop()
        if id(kind) not in kinds:
            kinds[id(kind)] = kind
            fresh += type.__subclasses__(kind)
    return list(kinds.values())


def held_by_pytorch_alone(tensors: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Returns the tensors that Python refers to, and the tensors that only PyTorch keeps, such as autograd for backward.

    PyTorch keeps the Python object of a tensor alive while its C++ code holds the tensor. `tensors` has to be the only list
    that they are in. The second list is empty for versions of PyTorch whose reference counts do not show this, such as 2.4.
    """
    if not _reference_counts_tell():
        return tensors, []
    # The C++ code has one reference to the object, however many holders of the tensor it has.
    return _native.held_alone(tensor_use_count, tensors, [torch.empty(0, device="cpu")])


@cache
def _reference_counts_tell() -> bool:
    """Returns True if a tensor that C++ code holds has one more reference to its Python object."""
    held, holder = torch.empty(0, device="cpu"), torch.empty(0, device="cpu")
    before = sys.getrefcount(held)
    holder.grad = held
    return sys.getrefcount(held) == before + 1
