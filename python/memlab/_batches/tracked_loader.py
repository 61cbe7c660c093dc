"""A DataLoader whose current batch is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from memlab._batches.nested import is_stream
from memlab._paging.torch_private import tree_map_only


class TrackedLoader:
    """Yields the batches of a loader, and records the last one. Forwards all other attributes to the loader.

    Moves targets to the device of the outputs, so that a loss may be computed from both. Inputs are unchanged.

    >>> batches = TrackedLoader([([1], [2]), ([3], [4])], lambda: None)
    >>> [batches.inputs for inputs, targets in batches], len(batches)
    ([[1], [3]], 2)
    """

    def __init__(self, loader: Iterable[Any], device: Callable[[], torch.device | None]) -> None:
        """`device`: the device of the outputs; None: not known."""
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
    """Yields the batches; of a batch given in pieces, each piece.

    >>> list(single([([1], [2]), iter([([3], [4]), ([5], [6])])]))
    [([1], [2]), ([3], [4]), ([5], [6])]
    """
    for batch in batches:
        if is_stream(batch):
            yield from batch
        else:
            yield batch


def is_divisible(batch: Any) -> bool:
    """True if the batch has inputs and targets."""
    return isinstance(batch, (tuple, list)) and len(batch) > 1


def _with_last(batch: Any, targets: Any) -> Any:
    """The batch with other targets."""
    if targets is batch[-1]:
        return batch
    entries = [*batch[:-1], targets]
    return type(batch)(*entries) if hasattr(batch, "_fields") else type(batch)(entries)


def divided(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets of a batch. The targets are the last entry; of more than two entries, the rest are the inputs.

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
