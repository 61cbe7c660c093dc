"""The schedule of a forward: the contents that stay, leave, or are recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

UNLIMITED = 1 << 62


class OffloadSchedule:
    """A schedule is advice: a forward that does not match it is computed correctly, but more slowly."""

    def __init__(
        self,
        *,
        pending_nbytes: int = 0,
        ahead_nbytes: int = 0,
        budget_nbytes: int = UNLIMITED,
        working_nbytes: int = 0,
        keep_nbytes: int = 0,
        offload_nbytes: int = 0,
        recomputed: frozenset[int] = frozenset(),
        tracked: frozenset[int] | None = None,
        held: frozenset[Any] = frozenset(),
        evicts: bool = False,
        keeps_all: bool = False,
        order: Sequence[Any] = (),
    ) -> None:
        #: Maximum bytes on their way to the host.
        self.pending_nbytes = pending_nbytes
        #: Maximum bytes on their way back before backward reads them.
        self.ahead_nbytes = ahead_nbytes
        #: Maximum bytes of contents that stay, that are on their way to the host, and that are back before they are read.
        self.budget_nbytes = budget_nbytes
        #: The part of `budget_nbytes` that recomputed contents take in backward.
        self.working_nbytes = working_nbytes
        #: Maximum bytes that stay on the device.
        self.keep_nbytes = keep_nbytes
        #: Bytes that leave before the first content may stay: contents made last are needed first.
        self.offload_nbytes = offload_nbytes
        #: Numbers of the operations that are recomputed in backward.
        self.recomputed = recomputed
        #: Numbers of the operations whose results are stored or recomputed; None if they are not known.
        self.tracked = tracked
        #: The contents that the program holds anyway.
        self.held = held
        #: True for unknown forwards: contents stay while they fit, and the oldest ones leave first.
        self.evicts = evicts
        #: True if all expected contents fit into `keep_nbytes`.
        self.keeps_all = keeps_all
        self.ordered(order)

    @property
    def shares_room(self) -> bool:
        """True if the contents that stay, leave and return have one limit."""
        return self.offload_nbytes > 0 and self.budget_nbytes < UNLIMITED

    def pending_limit(self, kept_nbytes: int) -> int:
        """Maximum bytes on their way to the host beside `kept_nbytes` that stay."""
        return max(min(self.pending_nbytes, self.budget_nbytes - kept_nbytes), 0)

    def ahead_limit(self, kept_nbytes: int) -> int:
        """Bytes on their way back at which no further content is loaded, while `kept_nbytes` have not been read."""
        return min(self.ahead_nbytes, max(self.budget_nbytes - self.working_nbytes - kept_nbytes, 1))

    def ordered(self, order: Sequence[Any]) -> None:
        """Sets the contents that a backward read from the host, in this order; None: a pause."""
        self.order = order
        self.position = {key: index for index, key in enumerate(order) if key is not None}
        self.pauses = [index for index, key in enumerate(order) if key is None]
