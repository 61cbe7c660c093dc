"""A thread in a forward: where it is, and which units it holds."""

from __future__ import annotations

import threading
from typing import Any, Protocol

from memlab import _native
from memlab._paging.device_pool import Residence
from memlab._paging.tracing import Tracer


class Forwards(Protocol):
    """What a visit asks of the pager."""

    residence: Residence
    kept_from_now_on: set[int]  # Units that stay on the device from the next forward on.
    keeping: dict[int, None]  # Units that somebody keeps where they are.
    inside: dict[int, Any]  # The threads in a forward.

    def needed_at(self, key: int) -> set[int]:
        """The units that may be needed from a boundary on."""


class Visit:
    """One thread in a forward."""

    def __init__(self, pager: Forwards, session: _native.Session) -> None:
        self.pager = pager
        self.residence = pager.residence
        self.session = session
        self.held: set[int] = set()
        self.ended = False  # And not by an exception.
        self.keepers: dict[int, _native.Session] = {}  # Of units whose memory is looked at beyond their points.

    def reach(self, key: int) -> None:
        residence, held = self.residence, self.held
        if held:
            self._before_release(self.pager.needed_at(key))
        if self.pager.keeping:
            self._refuse_overlap(key)
        changed = self.session.enter(key, residence.stream())
        if changed is not None:
            released, acquired = changed
            for unit in released:
                held.discard(unit)
                residence.rest(unit)
            for unit in acquired:
                held.add(unit)
                residence.appear(unit)

    def leave(self) -> None:
        refused = None
        try:
            self._before_release(None)
        except RuntimeError as error:
            refused = error
        for unit in self.session.leave(self.residence.stream()):
            if unit in self.held:
                self.held.discard(unit)
                self.residence.rest(unit)
        self.held.clear()
        if refused is not None and self.ended:
            raise refused

    def _before_release(self, needed: set[int] | None) -> None:
        """Saves what may be lost with the next step. A unit of which a view is alive stays where it is until the end."""
        for unit in self.held:
            looked_at = self.residence.before_release(unit)
            if looked_at and unit not in (needed or ()) and unit not in self.keepers:
                if len(self.pager.inside) > 1:
                    # Others may be waiting for this memory, and would do so for as long as the view lives.
                    raise self._unforeseen(unit)
                keeper = self.residence.pipeline.session()
                keeper.enter(unit_key(unit), self.residence.stream())
                self.keepers[unit] = keeper
                self.pager.keeping[unit] = None

    def _refuse_overlap(self, key: int) -> None:
        """Rather than wait for ever for memory that is kept, by this thread or another."""
        for kept in list(self.pager.keeping):
            if not self.residence.overlapping[kept].isdisjoint(self.pager.needed_at(key)):
                raise self._unforeseen(kept)

    def _unforeseen(self, kept: int) -> RuntimeError:
        name = self.residence.units[kept].name
        self.pager.kept_from_now_on.add(kept)
        return RuntimeError(
            f"a view of {name} is still in use after the layer that it belongs to, which it was not in the forward "
            "that was traced, and its memory is needed for the next one. It stays on the device from the next "
            "forward on: run this one again."
        )


def unit_key(unit: int) -> int:
    """A key that stands for one unit alone."""
    return -1 - unit


class TracedVisit:
    """The thread in a forward that is traced: notes where it is."""

    held: frozenset[int] = frozenset()

    def __init__(self, tracer: Tracer) -> None:
        self.reach = tracer.boundary
        self.ended = False
        self.keepers: dict[int, _native.Session] = {}

    def leave(self) -> None:
        """Nothing is held."""


class Unseen:
    """A thread that runs part of a traced forward once more."""

    held: frozenset[int] = frozenset()

    def reach(self, key: int) -> None:
        """Nothing is loaded, nothing noted."""


class Thread(threading.local):
    visit: Visit | TracedVisit | Unseen | None = None
    session: _native.Session | None = None
