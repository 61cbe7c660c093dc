"""Module boundaries: the points where a call begins or ends. The schedule consists of their keys."""

from __future__ import annotations

from torch import nn

from memlab import _native


class WrappedModule(_native.Boundaries):
    """A module with a wrapped `forward` or other method, and the keys of its boundaries.

    Until `watch` is called, both boundaries are reported.
    """

    def __new__(cls, _module: nn.Module, index: int, _method: str = "forward") -> WrappedModule:
        return super().__new__(cls, 2 * index, 2 * index + 1)

    def __init__(self, module: nn.Module, index: int, method: str = "forward") -> None:
        self.module = module
        self.index = index
        self.method = method


def unit_key(unit: int) -> int:
    """Returns the key of a single unit. It is below 0, where no boundary has a key."""
    return -1 - unit
