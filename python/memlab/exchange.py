"""The exchange of tensors where modules hold them: home outside of a forward, of the device within.

Whole dictionaries change places when a forward begins and ends; within, single entries do when a unit is loaded.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, nn

from memlab.weights import Home, Place, Weight


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
        self.touched = True
        return dict(self)

    def __setitem__(self, key: str, value: Any) -> None:
        self.touched = self.changed = True
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self.touched = self.changed = True
        super().__delitem__(key)

    def pop(self, *arguments: Any) -> Any:
        self.touched = self.changed = True
        return super().pop(*arguments)

    def update(self, *arguments: Any, **more: Any) -> None:
        self.touched = self.changed = True
        super().update(*arguments, **more)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


class Holder:
    """One dictionary of a module, in its two forms."""

    def __init__(self, module: nn.Module, kind: str) -> None:
        self.module = module
        self.kind = kind
        self.outside = Watched(module.__dict__[kind])
        self.inside: dict[str, Any] = dict(self.outside)
        self.homes: dict[str, Home] = {}
        module.__dict__[kind] = self.outside

    def exchanged(self) -> list[tuple[Home, Any]]:
        """Tensors of the module that were exchanged for others, or removed (None), since this was last asked."""
        if not self.outside.changed:
            return []
        self.outside.changed = False
        found = []
        for key, home in self.homes.items():
            now = dict.get(self.outside, key)
            if now is not home.tensor:
                found.append((home, now))
        for key in [key for key in self.inside if key not in self.outside]:
            del self.inside[key]
        self.inside.update({key: dict.get(self.outside, key) for key in self.outside if key not in self.homes})
        return found

    def take_over_loose(self) -> None:
        """What a forward assigned to the module (a counter, a cache) stays assigned."""
        if len(self.homes) == len(self.inside) == len(self.outside):
            return
        for key, tensor in self.inside.items():
            if key not in self.homes and dict.get(self.outside, key, self) is not tensor:
                dict.__setitem__(self.outside, key, tensor)


class Exchange:
    """All the places of a model's paged tensors."""

    def __init__(self, weights: list[Weight]) -> None:
        self.holders: dict[tuple[int, str], Holder] = {}
        self.lists: list[tuple[Place, Home]] = []
        self.slots: dict[Home, list[Slot]] = {}
        for weight in weights:
            for home in weight.homes:
                self.slots[home] = [self._slot(place, home) for place in home.places]

    def _slot(self, place: Place, home: Home) -> Slot:
        if place.kind not in ("_parameters", "_buffers"):
            self.lists.append((place, home))
            return Slot(place.module.__dict__[place.kind], place.key, place.weakly)
        holder = self.holders.get((id(place.module), place.kind))
        if holder is None:
            holder = self.holders[id(place.module), place.kind] = Holder(place.module, place.kind)
        holder.homes[str(place.key)] = home
        return Slot(holder.inside, place.key)

    def set_inside(self, home: Home, tensor: Tensor) -> None:
        """What a forward finds from now on."""
        for slot in self.slots[home]:
            if not slot.in_list:
                slot.put(tensor)

    def enter(self) -> None:
        for holder in self.holders.values():
            holder.module.__dict__[holder.kind] = holder.inside
        for place, home in self.lists:
            place.put(home.tensor if home.resting is None else home.resting)

    def leave(self) -> None:
        for holder in self.holders.values():
            holder.take_over_loose()
            holder.module.__dict__[holder.kind] = holder.outside
        for place, home in self.lists:
            place.put(home.tensor)

    def release(self) -> None:
        """Ordinary dictionaries again."""
        for holder in self.holders.values():
            holder.module.__dict__[holder.kind] = dict(holder.outside)


class Slot:
    """A place as a forward sees it: a dictionary or a list, and the key in it."""

    __slots__ = ("container", "in_list", "key", "weakly")

    def __init__(self, container: Any, key: Any, weakly: bool = False) -> None:
        self.container = container
        self.key = key
        self.weakly = weakly
        self.in_list = isinstance(container, list)

    def put(self, tensor: Tensor) -> None:
        self.container[self.key] = weakref.ref(tensor) if self.weakly else tensor
