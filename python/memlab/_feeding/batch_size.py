"""The largest batch on the GPU, from the plan of `memlab.inspect`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from memlab._feeding.errors import NotEnoughGPURam
from memlab._feeding.sample_form import SampleForm
from memlab._paging.sizes import readable

_MIB = 1 << 20
_LARGEST_CARD = 1 << 50


class Planner(Protocol):
    """Predicts the memory of one training at any batch size, as the report of `memlab.inspect` does."""

    def largest_batch(self, card_bytes: Any, *, allocator: str | None = None) -> int:
        """The largest batch that fits on a card, which is given in bytes or by name; 0 if none does."""


@dataclass(frozen=True)
class Training:
    """The training to plan."""

    network: Any
    inputs: SampleForm
    outputs: SampleForm
    optimizer: Any
    loss: Any
    amp: Any

    def planner(self) -> Planner:
        """The report of `memlab.inspect`."""
        import torch

        from memlab.inspection import inspect

        batch = torch.zeros((1, *self.inputs.shape), dtype=getattr(torch, self.inputs.dtype.name))
        report: Planner = inspect(self.network, batch, loss=self.loss, optimizer=self.optimizer, amp=self.amp)
        return report


def largest_fitting_batch(planner: Planner, card: Any, allocator: str | None, one_read_count: int) -> int:
    """The largest multiple of `one_read_count` that fits.

    Raises:
        NotEnoughGPURam: `one_read_count` rows do not fit; the message contains the memory that would be enough.
    """
    most = planner.largest_batch(card, allocator=allocator)
    if most >= one_read_count:
        return most - most % one_read_count
    there = readable(card) if isinstance(card, int) else str(card)
    needed = _smallest_card(planner, allocator, one_read_count)
    enough = f"{readable(needed)} would be enough" if needed else "no card is large enough"
    fewer = f"; one_read_count={most} would fit in {there}" if most else ""
    raise NotEnoughGPURam(f"a batch of {one_read_count} (one_read_count) does not fit into {there}: {enough}{fewer}")


def _smallest_card(planner: Planner, allocator: str | None, batch: int) -> int:
    """The bytes of the smallest card on which a batch fits, to 1 MiB; 0 if none is large enough."""
    fits, too_small = _MIB, 0
    while planner.largest_batch(fits, allocator=allocator) < batch:
        fits, too_small = fits * 2, fits
        if fits > _LARGEST_CARD:
            return 0
    while fits - too_small > _MIB:
        middle = (fits + too_small) // 2 // _MIB * _MIB
        if planner.largest_batch(middle, allocator=allocator) < batch:
            too_small = middle
        else:
            fits = middle
    return fits
