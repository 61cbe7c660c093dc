"""Module boundaries: where a call begins or ends. Their keys are what the schedule consists of."""

from __future__ import annotations

from torch import nn


class WrappedModule:
    """A module whose `forward` is wrapped, with the keys of its boundaries."""

    def __init__(self, module: nn.Module, index: int) -> None:
        self.module = module
        self.enter_key = 2 * index
        self.exit_key = 2 * index + 1
        # Whether the schedule has a point where a call begins, and where it ends. In the tracing stage both are reported.
        self.at_enter = True
        self.at_exit = True
        self.needs: frozenset[int] = frozenset()  # Units with weights that the module itself holds.


def unit_key(unit: int) -> int:
    """A key below 0, which no boundary has: names a single unit."""
    return -1 - unit
