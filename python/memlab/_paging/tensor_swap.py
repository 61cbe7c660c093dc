"""Exchanges tensors where modules hold them: the originals outside of forwards, mapped or loaded ones in forwards.

Whole `_parameters` and `_buffers` dictionaries are exchanged when a forward begins and ends. Within a forward, single
entries change as units are loaded. In lists (nn.LSTM also keeps its parameters in one) a tensor is found by identity,
because models reorder and empty them.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, nn

from memlab import _native
from memlab._paging.paged_tensor import ModuleEntry, PagedTensor, Weight
from memlab._paging.torch_private import TENSOR_DICTS


class Touches:
    """A flag that any of a model's hundreds of `WatchedDict`s was touched. Each forward reads it."""

    __slots__ = ("any",)

    def __init__(self) -> None:
        self.any = False


class WatchedDict(dict[str, Any]):
    """A module's parameters or buffers outside of forwards. Records reads and changes.

    An edit of ``module.weight.data`` leaves no trace on the tensor, but the editing code has read the tensor from a module
    before. Tensors that were read are copied to the device again.
    """

    __slots__ = ("_touched", "_touches", "changed")

    def __init__(self, entries: dict[str, Any], touches: Touches) -> None:
        super().__init__(entries)
        self._touches = touches
        self._touched = False
        self.changed = False  # Entries were replaced, added or removed.

    @property
    def touched(self) -> bool:
        """True if entries were read or changed."""
        return self._touched

    @touched.setter
    def touched(self, touched: bool) -> None:
        self._touched = touched
        if touched:
            self._touches.any = True

    def __getitem__(self, key: str) -> Any:
        self.touched = True
        return super().__getitem__(key)

    def __iter__(self) -> Any:
        # Defined, so that dict(this) and {**this} call `keys` and `__getitem__`.
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        self.touched = True
        return super().get(key, default)

    def items(self) -> Any:
        self.touched = True
        return super().items()

    def values(self) -> Any:
        self.touched = True
        return super().values()

    def copy(self) -> dict[str, Any]:
        return self.plain()

    def __or__(self, other: Any) -> Any:
        return self.plain() | other

    def __setitem__(self, key: str, value: Any) -> None:
        self.touched = self.changed = True
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self.touched = self.changed = True
        super().__delitem__(key)

    def pop(self, *arguments: Any) -> Any:
        self.touched = self.changed = True
        return super().pop(*arguments)

    def popitem(self) -> Any:
        self.touched = self.changed = True
        return super().popitem()

    def setdefault(self, *arguments: Any) -> Any:
        self.touched = self.changed = True
        return super().setdefault(*arguments)

    def clear(self) -> None:
        self.touched = self.changed = True
        super().clear()

    def update(self, *arguments: Any, **more: Any) -> None:
        self.touched = self.changed = True
        super().update(*arguments, **more)

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def plain(self) -> dict[str, Any]:
        """Returns the same entries as an ordinary dictionary."""
        self.touched = True
        return dict(super().items())

    def __reduce__(self) -> Any:
        return dict, (self.plain(),)


class SwappedDict:
    """One dictionary of a module, in its forms outside of forwards and within."""

    def __init__(self, module: nn.Module, attribute: str, touches: Touches) -> None:
        self.module = module
        self.attribute = attribute
        self.outside = WatchedDict(module.__dict__[attribute], touches)
        self.inside: dict[str, Any] = dict(module.__dict__[attribute])
        self.paged: dict[str, PagedTensor] = {}
        module.__dict__[attribute] = self.outside

    def replaced(self) -> list[tuple[PagedTensor, Any]]:
        """Returns paged tensors that were replaced outside of forwards, each with its replacement (None: removed)."""
        if not self.outside.changed:
            return []
        for key in [key for key in self.inside if key not in self.outside]:
            del self.inside[key]
        for key in self.outside.keys() - self.paged.keys():
            self.inside[key] = dict.get(self.outside, key)
        now = ((paged, dict.get(self.outside, key)) for key, paged in self.paged.items())
        return [(paged, tensor) for paged, tensor in now if tensor is not paged.tensor]

    def take_assignments(self) -> None:
        """Copies a forward's assignments to the module (a counter, a cache) to `outside`."""
        for key, tensor in self.inside.items():
            if key not in self.paged and dict.get(self.outside, key, self) is not tensor:
                dict.__setitem__(self.outside, key, tensor)


class DictSlot:
    """An entry of a dictionary that forwards see."""

    __slots__ = ("container", "key")

    def __init__(self, container: dict[str, Any], key: str) -> None:
        self.container = container
        self.key = key

    def put(self, tensor: Tensor) -> None:
        self.container[self.key] = tensor


class ListSlot:
    """A list among a module's attributes that holds a tensor, at any index."""

    __slots__ = ("attribute", "module", "paged")

    def __init__(self, entry: ModuleEntry, paged: PagedTensor) -> None:
        self.module = entry.module
        self.attribute = entry.attribute
        self.paged = paged

    def put(self, tensor: Tensor) -> None:
        held = self.module.__dict__.get(self.attribute)
        if type(held) is not list:
            return
        forms = self.paged.forms()
        for index, entry in enumerate(held):
            is_weak = isinstance(entry, weakref.ref)
            present = entry() if is_weak else entry
            if any(present is form for form in forms) and present is not tensor:
                held[index] = weakref.ref(tensor) if is_weak else tensor


class TensorSwap:
    """All module entries that hold paged tensors."""

    def __init__(self, weights: list[Weight]) -> None:
        self.dicts: dict[tuple[int, str], SwappedDict] = {}
        self.touches = Touches()
        self.lists: list[ListSlot] = []
        self.slots: dict[PagedTensor, list[DictSlot | ListSlot]] = {}
        self.entered = False
        for weight in weights:
            for paged in weight.tensors:
                self.slots[paged] = [self._slot(entry, paged) for entry in paged.entries]
        self.watched = [swapped.outside for swapped in self.dicts.values()]
        self.swapped = _native.SwappedDicts(list(self.dicts.values()))

    def _slot(self, entry: ModuleEntry, paged: PagedTensor) -> DictSlot | ListSlot:
        if entry.attribute not in TENSOR_DICTS:
            self.lists.append(ListSlot(entry, paged))
            return self.lists[-1]
        swapped = self.dicts.get((id(entry.module), entry.attribute))
        if swapped is None:
            swapped = SwappedDict(entry.module, entry.attribute, self.touches)
            self.dicts[id(entry.module), entry.attribute] = swapped
        swapped.paged[str(entry.key)] = paged
        return DictSlot(swapped.inside, str(entry.key))

    def forget(self, weight: Weight) -> None:
        """Stops exchanging a weight's tensors, so that forwards find the originals. Call it outside of forwards."""
        for paged in weight.tensors:
            for entry, slot in zip(paged.entries, self.slots.pop(paged), strict=True):
                if isinstance(slot, ListSlot):
                    self.lists.remove(slot)
                else:
                    slot.put(paged.tensor)
                    del self.dicts[id(entry.module), entry.attribute].paged[slot.key]

    def put_inside(self, paged: PagedTensor, tensor: Tensor) -> None:
        """Sets the tensor that forwards find in this place. (In lists, the start of the next forward sets it.)"""
        for slot in self.slots[paged]:
            if isinstance(slot, DictSlot):
                slot.put(tensor)

    def assigned(self, paged: PagedTensor) -> Tensor | None:
        """Returns the tensor that a forward has assigned in this place, or None."""
        for slot in self.slots[paged]:
            if isinstance(slot, DictSlot):
                now = slot.container.get(slot.key)
                if now is paged.unloaded or now is paged.on_device or now is paged.tensor:
                    continue
                if isinstance(now, Tensor):
                    return now
        return None

    def originals(self, module: nn.Module) -> dict[str, dict[str, Any]]:
        """Returns a module's dictionaries as they are outside of forwards, by name."""
        dicts = (self.dicts.get((id(module), attribute)) for attribute in TENSOR_DICTS)
        return {swapped.attribute: swapped.outside.plain() for swapped in dicts if swapped is not None}

    def enter(self) -> None:
        """Makes modules hold the tensors for forwards, unless another thread's forward has done so."""
        if self.entered:
            return
        self.entered = True
        self.swapped.enter()
        for slot in self.lists:
            slot.put(slot.paged.tensor if slot.paged.unloaded is None else slot.paged.unloaded)

    def leave(self) -> None:
        """Makes modules hold the originals. Call it when no thread is in a forward."""
        if not self.entered:
            return
        self.swapped.leave()
        for slot in self.lists:
            slot.put(slot.paged.tensor)
        self.entered = False

    def touched(self) -> bool:
        """True if a tensor was read from a module since the last forward."""
        return self.touches.any

    def forget_touches(self, *, but_changes: bool = False) -> None:
        """Clears the touches. With `but_changes`, replaced tensors stay touched."""
        self.touches.any = False
        for watched in self.watched:
            watched.changed = watched.changed and but_changes
            watched.touched = watched.changed

    def release(self) -> None:
        """Gives modules ordinary dictionaries again."""
        for swapped in self.dicts.values():
            swapped.module.__dict__[swapped.attribute] = swapped.outside.plain()
            dict.clear(swapped.outside)
            swapped.inside.clear()
