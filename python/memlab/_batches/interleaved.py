"""What strands would otherwise share: random numbers, and the model's buffers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from memlab._batches.state import RandomState, same_values
from memlab._paging.torch_private import versions_of


class RandomNumbers:
    """A state for each strand: the first goes on with the caller's, the others are seeded from it.

    If strands shared one, a checkpoint within a strand could not draw the same numbers again: others draw in between.
    """

    def __init__(self, devices: Iterable[torch.device], strands: int) -> None:
        self._devices = list(devices)
        self._before = RandomState(self._devices)
        self._states: list[RandomState | int] = [self._before]
        digest = self._before.digest()
        for index in range(1, strands):
            seed = hashlib.blake2b(digest + index.to_bytes(8, "little"), digest_size=7).digest()
            self._states.append(int.from_bytes(seed, "little"))

    def resume(self, strand: int) -> None:
        """What is drawn next, this strand draws."""
        state = self._states[strand]
        if isinstance(state, RandomState):
            state.restore()
            return
        RandomState.seed(state, self._devices)

    def suspend(self, strand: int) -> None:
        """Another may draw."""
        self._states[strand] = RandomState(self._devices)

    def set_before(self) -> None:
        """As before the batch."""
        self._before.restore()


class InterleavedBuffers:
    """A model's buffers: each strand finds them as the whole batch would have, and then as it left them itself.

    What is not written in a strand (running statistics, which are written where strands meet) is the same for all.
    """

    def __init__(self, model: nn.Module, strands: int) -> None:
        self._named = dict(model.named_buffers())
        self._before = {name: buffer.detach().clone() for name, buffer in self._named.items()}
        self._written: set[str] = set()
        self._own: list[dict[str, Tensor]] = [{} for _ in range(strands)]
        self._versions: list[int] = []

    def resume(self, strand: int) -> None:
        """They are as this strand left them."""
        own = self._own[strand]
        for name in self._written:
            self._set(name, own.get(name, self._before[name]))
        self._versions = versions_of(list(self._named.values()))

    def suspend(self, strand: int) -> None:
        """Takes note of what the strand has written since `resume`."""
        versions = versions_of(list(self._named.values()))
        for (name, buffer), before, after in zip(self._named.items(), self._versions, versions, strict=True):
            if before != after:
                self._written.add(name)
                self._own[strand][name] = buffer.detach().clone()

    def different(self) -> str | None:
        """The name of one in which strands left different values: it depends on the samples."""
        first, *others = self._own
        for name in sorted(self._written):
            value = first.get(name, self._before[name])
            if any(not same_values(value, own.get(name, self._before[name])) for own in others):
                return name
        return None

    def set_before(self) -> None:
        """As before the batch."""
        with torch.no_grad():
            for name, buffer in self._named.items():
                buffer.copy_(self._before[name])

    def set_after(self, strand: int) -> None:
        """As after the batch: as this strand left them."""
        self.resume(strand)

    def _set(self, name: str, value: Tensor) -> None:
        # Not a write for autograd: what a graph has saved of it has the same values again whenever that graph runs.
        self._named[name].detach().data.copy_(value)
