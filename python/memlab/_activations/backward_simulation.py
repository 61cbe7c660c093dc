"""Simulates a backward without its computation: the order of loads for a choice, and the memory of recomputed values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SimulatedOperation:
    """An operation of a forward, with the numbers of its values."""

    inputs: Sequence[int]
    outputs: Sequence[int]


class BackwardSimulation:
    """Replays the reads of a backward, with some values stored and the others recomputed.

    A recomputed value stays in memory until its last reader has it, as in `OffloadedForward`.
    """

    def __init__(
        self,
        steps: Sequence[SimulatedOperation],
        nbytes: Sequence[int],
        reads: Sequence[int],
        stored: Sequence[bool],
        recomputed: Sequence[bool],
        working: int | None = None,
    ) -> None:
        """`working`: bytes of recomputed values above which they are listed in `excesses`."""
        self._steps = steps
        self._nbytes = nbytes
        self._stored = stored
        self._maker = {value: index for index, step in enumerate(steps) if recomputed[index] for value in step.outputs}
        self._uses = [0] * len(nbytes)
        for value in reads:
            self._uses[value] += 1
        for index, step in enumerate(steps):
            if recomputed[index]:
                for value in step.inputs:
                    self._uses[value] += 1
        self._left = list(self._uses)
        self._there: set[int] = set()
        self._in_use = 0
        #: The stored values in the order of their first reads.
        self.order: list[int] = []
        #: Peak bytes of recomputed values, and the values at that peak.
        self.peak = 0
        self.at_peak: list[int] = []
        #: The recomputed values in memory, each time that they take most and more than `working`.
        self.excesses: list[list[int]] = []
        self._working = working
        self._most = 0
        for value in reads:
            self._read(value)

    def _read(self, value: int) -> None:
        """Reads a value, without recursion: chains can be longer than Python's stack."""
        open_values = [value]
        while open_values:
            last = open_values[-1]
            missing = [] if last in self._there else self._missing(last)
            if missing:
                open_values.extend(missing)
                continue
            open_values.pop()
            if last not in self._there:
                self._make(last)
        self._served(value)

    def _missing(self, value: int) -> list[int]:
        """The values that must exist before a value can be recomputed."""
        maker = self._maker.get(value)
        if maker is None:
            return []
        return [one for one in reversed(self._steps[maker].inputs) if one not in self._there]

    def _make(self, value: int) -> None:
        maker = self._maker.get(value)
        if maker is None:
            self._there.add(value)
            self.order.append(value)
            return
        step = self._steps[maker]
        for output in step.outputs:
            if output not in self._there and (output == value or self._left[output] > 0):
                self._there.add(output)
                self._in_use += self._nbytes[output]
        if self._in_use > self.peak:
            self.peak = self._in_use
            self.at_peak = self._recomputed_now()
        if self._working is not None and self._in_use > max(self._most, self._working):
            if self._most:
                self.excesses.pop()
            self._most = self._in_use
            self.excesses.append(self._recomputed_now())
        for one in step.inputs:
            self._served(one)

    def _served(self, value: int) -> None:
        self._left[value] -= 1
        if self._left[value] <= 0:
            self._left[value] = self._uses[value]
            if value in self._there:
                self._there.discard(value)
                if value in self._maker:
                    self._in_use -= self._nbytes[value]
                    if self._working is not None and self._in_use <= self._working:
                        self._most = 0

    def _recomputed_now(self) -> list[int]:
        return sorted(one for one in self._there if one in self._maker)
