"""Cards that are planned for, and the one that is there."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from memlab import _native

#: For which a plan is made if none is named and none is there.
DEFAULT = "h100"


@dataclass(frozen=True)
class Card:
    """A card."""

    name: str
    nbytes: int
    context: int
    is_measured: bool


def card_of(card: int | str) -> Card:
    """A card by its name (``"a100-40gb"``) or its memory (``"24GiB"``, or bytes).

    Raises:
        ValueError: no card has that name.
    """
    return Card(*_native.card(f"{card}B" if isinstance(card, int) else card))


def is_gpu_there() -> bool:
    """Whether PyTorch can use a GPU. Does not initialise CUDA: no forked child could use it afterwards."""
    if torch.cuda.is_initialized():
        return True
    return _native.driver_found() and torch.cuda.device_count() > 0


def card_that_is_there() -> str:
    """The card of this machine as `card_of` takes it: by its name, or by its memory if no table has that."""
    properties = torch.cuda.get_device_properties(0)
    try:
        _native.card(properties.name)
    except ValueError:
        return f"{properties.total_memory}B"
    return str(properties.name)
