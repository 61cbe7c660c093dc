"""The schedule of a forward: which contents stay, leave, or are computed again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class OffloadSchedule:
    """A schedule is advice: a forward that it was not made for is computed as rightly, more slowly."""

    def __init__(
        self,
        *,
        pending_nbytes: int,
        ahead_nbytes: int,
        keep_nbytes: int = 0,
        offload_nbytes: int = 0,
        recomputed: frozenset[int] = frozenset(),
        held: frozenset[Any] = frozenset(),
        evicts: bool = False,
        order: Sequence[Any] = (),
    ) -> None:
        #: How many bytes may be on their way to the host.
        self.pending_nbytes = pending_nbytes
        #: How many bytes may be on their way back before they are asked for.
        self.ahead_nbytes = ahead_nbytes
        #: How many bytes may stay on the device.
        self.keep_nbytes = keep_nbytes
        #: How many bytes leave before the first may stay: what is made last is needed first.
        self.offload_nbytes = offload_nbytes
        #: The operations that run again in backward, by their number.
        self.recomputed = recomputed
        #: The contents that the program holds anyway.
        self.held = held
        #: Whether all stays that fits, and what was made first leaves for the rest: for forwards of which nothing is known.
        self.evicts = evicts
        self.ordered(order)

    def ordered(self, order: Sequence[Any]) -> None:
        """The contents that a backward read from the host, in this order; None: where it paused."""
        self.order = order
        self.position = {key: index for index, key in enumerate(order) if key is not None}
        self.pauses = [index for index, key in enumerate(order) if key is None]
