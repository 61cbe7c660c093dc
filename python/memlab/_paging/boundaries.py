"""Module boundaries, where a call begins or ends: the keys of the schedule."""

from __future__ import annotations

from torch import nn


class WrappedModule:
    """A module whose calls are seen."""

    def __init__(self, module: nn.Module, index: int) -> None:
        self.module = module
        self.enter_key = 2 * index
        self.exit_key = 2 * index + 1
        # Whether a point of the schedule is where a call begins, where it ends. While tracing both are.
        self.at_enter = True
        self.at_exit = True
        self.needs: frozenset[int] = frozenset()  # Units with weights that the module itself holds.


def unit_key(unit: int) -> int:
    """A key for one unit alone, which no boundary has."""
    return -1 - unit
