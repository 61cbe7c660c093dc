"""A DataLoader whose current batch is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from memlab._batches.nested import is_stream


class KnownBatches:
    """Gives the batches of a loader, and knows which it gave last. Everything else is the loader's.

    >>> batches = KnownBatches([([1], [2]), ([3], [4])])
    >>> [batches.inputs for inputs, targets in batches], len(batches)
    ([[1], [3]], 2)
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.inputs: Any = None
        self.targets: Any = None

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            self.inputs, self.targets = (batch, None) if is_stream(batch) else divided(batch)
            yield batch

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


def divided(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets of a batch: of two entries they are these, of more the last are the targets.

    >>> divided((1, 2)), divided((1, 2, 3))
    ((1, 2), ((1, 2), 3))

    Raises:
        TypeError: the batch is not a tuple or list of at least two entries.
    """
    if isinstance(batch, Mapping) or not isinstance(batch, (tuple, list)) or len(batch) < 2:
        raise TypeError(
            f"the dataloader gives a {type(batch).__name__}: it must give (inputs, targets). For others write the loop: "
            "outputs = ib.batch_(inputs), then a loss, and loss.backward()"
        )
    *inputs, targets = batch
    return (inputs[0] if len(inputs) == 1 else tuple(inputs)), targets
