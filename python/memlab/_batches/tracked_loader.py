"""A DataLoader whose current batch is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from memlab._batches.nested import is_stream
from memlab._paging.torch_private import tree_map_only


class TrackedLoader:
    """Gives the batches of a loader, and knows which it gave last. Everything else is the loader's.

    Targets are where outputs will be, so that a loss may be computed from both. Inputs are as the loader gives them.

    >>> batches = TrackedLoader([([1], [2]), ([3], [4])], lambda: None)
    >>> [batches.inputs for inputs, targets in batches], len(batches)
    ([[1], [3]], 2)
    """

    def __init__(self, loader: Iterable[Any], device: Callable[[], torch.device | None]) -> None:
        """`device`: where outputs will be; None: not known."""
        self.loader = loader
        self._device = device
        self.inputs: Any = None
        self.targets: Any = None

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            self.inputs = self.targets = None
            if is_stream(batch):
                self.inputs = batch
            elif is_divisible(batch):
                *inputs, targets = batch
                self.inputs, self.targets = divided([*inputs, self._moved(targets)])
                batch = _with_last(batch, self.targets)
            yield batch

    def _moved(self, targets: Any) -> Any:
        device = self._device()
        if device is None:
            return targets
        return tree_map_only(Tensor, lambda one: one.to(device, non_blocking=True), targets)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


def single(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches, and of those that are given in pieces each piece.

    >>> list(single([([1], [2]), iter([([3], [4]), ([5], [6])])]))
    [([1], [2]), ([3], [4]), ([5], [6])]
    """
    for batch in batches:
        if is_stream(batch):
            yield from batch
        else:
            yield batch


def is_divisible(batch: Any) -> bool:
    """Whether it has inputs and targets."""
    return isinstance(batch, (tuple, list)) and len(batch) > 1


def _with_last(batch: Any, targets: Any) -> Any:
    """The batch, with other targets."""
    if targets is batch[-1]:
        return batch
    entries = [*batch[:-1], targets]
    return type(batch)(*entries) if hasattr(batch, "_fields") else type(batch)(entries)


def divided(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets of a batch: of two entries they are these, of more the last are the targets.

    >>> divided((1, 2)), divided((1, 2, 3))
    ((1, 2), ((1, 2), 3))

    Raises:
        TypeError: the batch is not a tuple or list of at least two entries.
    """
    if not is_divisible(batch):
        raise TypeError(
            f"the dataloader yields a {type(batch).__name__}: it must yield (inputs, targets). For others write the loop: "
            "outputs = ib.batch_(inputs), then a loss, and loss.backward()"
        )
    *inputs, targets = batch
    return (inputs[0] if len(inputs) == 1 else tuple(inputs)), targets
