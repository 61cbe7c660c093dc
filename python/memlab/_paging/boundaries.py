"""Module boundaries: where a call begins or ends. Their keys are what the schedule consists of."""

from __future__ import annotations

from torch import nn

from memlab import _native


class WrappedModule(_native.Boundaries):
    """A module whose `forward`, or another method, is wrapped, with the keys of its boundaries.

    Until `watch` is called, both are reported.
    """

    def __new__(cls, _module: nn.Module, index: int, _method: str = "forward") -> WrappedModule:
        return super().__new__(cls, 2 * index, 2 * index + 1)

    def __init__(self, module: nn.Module, index: int, method: str = "forward") -> None:
        self.module = module
        self.index = index
        self.method = method


def unit_key(unit: int) -> int:
    """A key below 0, which no boundary has: names a single unit."""
    return -1 - unit
