"""The schedule of a forward: the contents that stay, leave, or are recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class OffloadSchedule:
    """A schedule is advice: a forward that does not match it is computed correctly, but more slowly."""

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
        #: Maximum bytes on their way to the host.
        self.pending_nbytes = pending_nbytes
        #: Maximum bytes on their way back before backward reads them.
        self.ahead_nbytes = ahead_nbytes
        #: Maximum bytes that stay on the device.
        self.keep_nbytes = keep_nbytes
        #: Bytes that leave before the first content may stay: contents made last are needed first.
        self.offload_nbytes = offload_nbytes
        #: Numbers of the operations that are recomputed in backward.
        self.recomputed = recomputed
        #: The contents that the program holds anyway.
        self.held = held
        #: True for unknown forwards: contents stay while they fit, and the oldest ones leave first.
        self.evicts = evicts
        self.ordered(order)

    def ordered(self, order: Sequence[Any]) -> None:
        """Sets the contents that a backward read from the host, in this order; None: a pause."""
        self.order = order
        self.position = {key: index for index, key in enumerate(order) if key is not None}
        self.pauses = [index for index, key in enumerate(order) if key is None]
