"""Separate random numbers and buffers for the thread of each micro-batch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from memlab._batches.state import RandomState, same_values
from memlab._paging.torch_private import versions_of


class RandomNumbers:
    """A random state for each thread: the first continues the caller's, the others are seeded from it.

    With a shared state, a checkpoint within a thread could not draw the same numbers again, since other threads draw in
    between.
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
        """Sets the random state to that of this thread."""
        state = self._states[thread]
        if isinstance(state, RandomState):
            state.restore()
            return
        RandomState.seed(state, self._devices)

    def suspend(self, thread: int) -> None:
        """Saves the random state of this thread, so that another may draw."""
        self._states[thread] = RandomState(self._devices)

    def set_before(self) -> None:
        """Restores the state from before the batch."""
        self._before.restore()


class InterleavedBuffers:
    """A model's buffers: each thread first finds the values from before the batch, and later those that it left itself.

    Buffers that no thread writes are the same for all. These include running statistics, which are written where threads
    meet.
    """

    def __init__(self, model: nn.Module, threads: int) -> None:
        self._named = dict(model.named_buffers())
        self._before = {name: buffer.detach().clone() for name, buffer in self._named.items()}
        self._written: set[str] = set()
        self._own: list[dict[str, Tensor]] = [{} for _ in range(threads)]
        self._versions: list[int] = []

    def resume(self, thread: int) -> None:
        """Sets the buffers to the values that this thread left."""
        own = self._own[thread]
        for name in self._written:
            self._set(name, own.get(name, self._before[name]))
        self._versions = versions_of(list(self._named.values()))

    def suspend(self, thread: int) -> None:
        """Records the buffers that the thread has written since `resume`."""
        versions = versions_of(list(self._named.values()))
        for (name, buffer), before, after in zip(self._named.items(), self._versions, versions, strict=True):
            if before != after:
                self._written.add(name)
                self._own[thread][name] = buffer.detach().clone()

    def different(self) -> str | None:
        """The name of a buffer in which threads left different values, since it depends on the samples; None: none."""
        first, *others = self._own
        for name in sorted(self._written):
            value = first.get(name, self._before[name])
            if any(not same_values(value, own.get(name, self._before[name])) for own in others):
                return name
        return None

    def set_before(self) -> None:
        """Restores the buffers from before the batch."""
        with torch.no_grad():
            for name, buffer in self._named.items():
                buffer.copy_(self._before[name])

    def set_after(self, thread: int) -> None:
        """Sets the buffers to their values after the batch: those that this thread left."""
        self.resume(thread)

    def _set(self, name: str, value: Tensor) -> None:
        # Autograd must not see this write: whenever a graph runs, the buffers have the values that it saved.
        self._named[name].detach().data.copy_(value)
