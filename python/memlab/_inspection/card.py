"""The cards of a plan, and the card of this machine."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from memlab import _native

#: The card of a plan if none is named and this machine has none.
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
    """True if PyTorch can use a GPU. Does not initialise CUDA: no forked child could use it afterwards."""
    if torch.cuda.is_initialized():
        return True
    return _native.driver_found() and torch.cuda.device_count() > 0


def card_that_is_there() -> str:
    """The card of this machine, as an argument of `card_of`: its name, or its memory if the name is not in the table."""
    properties = torch.cuda.get_device_properties(0)
    try:
        _native.card(properties.name)
    except ValueError:
        return f"{properties.total_memory}B"
    return str(properties.name)
