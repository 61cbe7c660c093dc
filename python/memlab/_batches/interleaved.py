"""Random numbers and buffers for each micro-batch's thread, which would otherwise share them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from memlab._batches.state import RandomState, same_values
from memlab._paging.torch_private import versions_of


class RandomNumbers:
    """A state for each thread: the first goes on with the caller's, the others are seeded from it.

    If threads shared one, a checkpoint within a thread could not draw the same numbers again: others draw in between.
    """

    def __init__(self, devices: Iterable[torch.device], threads: int) -> None:
        self._devices = list(devices)
        self._before = RandomState(self._devices)
        self._states: list[RandomState | int] = [self._before]
        digest = self._before.digest()
        for index in range(1, threads):
            seed = hashlib.blake2b(digest + index.to_bytes(8, "little"), digest_size=7).digest()
            self._states.append(int.from_bytes(seed, "little"))

    def resume(self, thread: int) -> None:
        """The next random numbers are those of this thread."""
        state = self._states[thread]
        if isinstance(state, RandomState):
            state.restore()
            return
        RandomState.seed(state, self._devices)

    def suspend(self, thread: int) -> None:
        """Another may draw."""
        self._states[thread] = RandomState(self._devices)

    def set_before(self) -> None:
        """As before the batch."""
        self._before.restore()


class InterleavedBuffers:
    """A model's buffers: each thread finds them as the whole batch would have, and then as it left them itself.

    What is not written in a thread (running statistics, which are written where threads meet) is the same for all.
    """

    def __init__(self, model: nn.Module, threads: int) -> None:
        self._named = dict(model.named_buffers())
        self._before = {name: buffer.detach().clone() for name, buffer in self._named.items()}
        self._written: set[str] = set()
        self._own: list[dict[str, Tensor]] = [{} for _ in range(threads)]
        self._versions: list[int] = []

    def resume(self, thread: int) -> None:
        """They are as this thread left them."""
        own = self._own[thread]
        for name in self._written:
            self._set(name, own.get(name, self._before[name]))
        self._versions = versions_of(list(self._named.values()))

    def suspend(self, thread: int) -> None:
        """Takes note of what the thread has written since `resume`."""
        versions = versions_of(list(self._named.values()))
        for (name, buffer), before, after in zip(self._named.items(), self._versions, versions, strict=True):
            if before != after:
                self._written.add(name)
                self._own[thread][name] = buffer.detach().clone()

    def different(self) -> str | None:
        """The name of one in which threads left different values: it depends on the samples."""
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

    def set_after(self, thread: int) -> None:
        """As after the batch: as this thread left them."""
        self.resume(thread)

    def _set(self, name: str, value: Tensor) -> None:
        # Not a write for autograd: what a graph has saved of it has the same values again whenever that graph runs.
        self._named[name].detach().data.copy_(value)
