"""The exchange of tensors where modules hold them: home outside of a forward, of the device within.

Whole dictionaries change places when a forward begins and ends; within, single entries do when a unit is loaded. In lists
(nn.LSTM keeps its parameters in one as well) tensors are found by what they are, as models turn and empty lists.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, nn

from memlab._paging.paged_tensor import KINDS, Home, Place, Weight


class Watched(dict[str, Any]):
    """A module's parameters or buffers outside of forwards. Remembers that somebody had a look at what it holds.

    An edit of ``module.weight.data`` leaves no trace at the tensor; but whoever makes it has asked a module for the
    tensor before. What was asked for is copied to the device again.
    """

    __slots__ = ("changed", "touched")

    def __init__(self, entries: dict[str, Any]) -> None:
        super().__init__(entries)
        self.touched = False
        self.changed = False  # Entries were exchanged, added or removed.

    def __getitem__(self, key: str) -> Any:
        self.touched = True
        return super().__getitem__(key)

    def __iter__(self) -> Any:
        # Defined, so that dict(this) and {**this} come through `keys` and `__getitem__`.
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
        """An ordinary dictionary of the same."""
        self.touched = True
        return dict(super().items())

    def __reduce__(self) -> Any:
        return dict, (self.plain(),)


class Holder:
    """One dictionary of a module, in its two forms."""

    def __init__(self, module: nn.Module, kind: str) -> None:
        self.module = module
        self.kind = kind
        self.outside = Watched(module.__dict__[kind])
        self.inside: dict[str, Any] = dict(module.__dict__[kind])
        self.homes: dict[str, Home] = {}
        module.__dict__[kind] = self.outside

    def exchanged(self) -> list[tuple[str, Home, Any]]:
        """Tensors of the module that were exchanged for others, or removed (None): by name."""
        if not self.outside.changed:
            return []
        for key in [key for key in self.inside if key not in self.outside]:
            del self.inside[key]
        for key in self.outside.keys() - self.homes.keys():
            self.inside[key] = dict.get(self.outside, key)
        now = ((key, home, dict.get(self.outside, key)) for key, home in self.homes.items())
        return [(key, home, tensor) for key, home, tensor in now if tensor is not home.tensor]

    def take_over_loose(self) -> None:
        """What a forward assigned to the module (a counter, a cache) stays assigned."""
        for key, tensor in self.inside.items():
            if key not in self.homes and dict.get(self.outside, key, self) is not tensor:
                dict.__setitem__(self.outside, key, tensor)


class Slot:
    """An entry of a dictionary, as a forward sees it."""

    __slots__ = ("container", "key")

    def __init__(self, container: dict[str, Any], key: str) -> None:
        self.container = container
        self.key = key

    def put(self, tensor: Tensor) -> None:
        self.container[self.key] = tensor


class ListSlot:
    """A list among a module's attributes that holds a tensor, wherever in it."""

    __slots__ = ("attribute", "home", "module")

    def __init__(self, place: Place, home: Home) -> None:
        self.module = place.module
        self.attribute = place.kind
        self.home = home

    def put(self, tensor: Tensor) -> None:
        held = self.module.__dict__.get(self.attribute)
        if type(held) is not list:
            return
        forms = self.home.forms()
        for index, entry in enumerate(held):
            weakly = isinstance(entry, weakref.ref)
            present = entry() if weakly else entry
            if any(present is form for form in forms) and present is not tensor:
                held[index] = weakref.ref(tensor) if weakly else tensor


class Exchange:
    """All the places of a model's paged tensors."""

    def __init__(self, weights: list[Weight]) -> None:
        self.holders: dict[tuple[int, str], Holder] = {}
        self.lists: list[ListSlot] = []
        self.slots: dict[Home, list[Slot | ListSlot]] = {}
        self.entered = False
        for weight in weights:
            for home in weight.homes:
                self.slots[home] = [self._slot(place, home) for place in home.places]
        self.outsides = [holder.outside for holder in self.holders.values()]

    def _slot(self, place: Place, home: Home) -> Slot | ListSlot:
        if place.kind not in KINDS:
            self.lists.append(ListSlot(place, home))
            return self.lists[-1]
        holder = self.holders.get((id(place.module), place.kind))
        if holder is None:
            holder = self.holders[id(place.module), place.kind] = Holder(place.module, place.kind)
        holder.homes[str(place.key)] = home
        return Slot(holder.inside, str(place.key))

    def forget(self, weight: Weight) -> None:
        """Leaves a weight's tensors where modules hold them, inside of forwards as well. (To be called outside.)"""
        for home in weight.homes:
            for place, slot in zip(home.places, self.slots.pop(home), strict=True):
                if isinstance(slot, ListSlot):
                    self.lists.remove(slot)
                else:
                    slot.put(home.tensor)
                    del self.holders[id(place.module), place.kind].homes[slot.key]

    def set_inside(self, home: Home, tensor: Tensor) -> None:
        """What a forward finds from now on."""
        for slot in self.slots[home]:
            if isinstance(slot, Slot):
                slot.put(tensor)

    def assigned(self, home: Home) -> Tensor | None:
        """What a forward has put in a tensor's place, if it has."""
        for slot in self.slots[home]:
            if isinstance(slot, Slot):
                now = slot.container.get(slot.key)
                if now is home.resting or now is home.here or now is home.tensor:
                    continue
                if isinstance(now, Tensor):
                    return now
        return None

    def outside(self, module: nn.Module) -> dict[str, dict[str, Any]]:
        """A module's dictionaries as they are outside of forwards, by their names."""
        holders = (self.holders.get((id(module), kind)) for kind in KINDS)
        return {holder.kind: holder.outside.plain() for holder in holders if holder is not None}

    def enter(self) -> None:
        if self.entered:
            return  # Another thread is in a forward, and has units loaded.
        self.entered = True
        for holder in self.holders.values():
            holder.module.__dict__[holder.kind] = holder.inside
        for slot in self.lists:
            slot.put(slot.home.tensor if slot.home.resting is None else slot.home.resting)

    def leave(self) -> None:
        if not self.entered:
            return
        for holder in self.holders.values():
            if not len(holder.homes) == len(holder.inside) == len(holder.outside):
                holder.take_over_loose()
            holder.module.__dict__[holder.kind] = holder.outside
        for slot in self.lists:
            slot.put(slot.home.tensor)
        self.entered = False

    def touched(self) -> bool:
        """Whether somebody has asked a module for one of its tensors since the last forward."""
        return any(outside.touched for outside in self.outsides)

    def forget_touches(self) -> None:
        for outside in self.outsides:
            outside.touched = outside.changed = False

    def release(self) -> None:
        """Ordinary dictionaries again."""
        for holder in self.holders.values():
            holder.module.__dict__[holder.kind] = holder.outside.plain()
            dict.clear(holder.outside)
            holder.inside.clear()
