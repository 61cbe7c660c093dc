"""A thread in a forward: where it is, and which units it holds."""

from __future__ import annotations

import threading
from typing import Protocol

from memlab import _native
from memlab.residence import Residence
from memlab.tracing import Tracer


class Forwards(Protocol):
    """What a visit asks of the pager."""

    residence: Residence
    kept_from_now_on: set[int]  # Units that stay on the device from the next forward on.

    def needed_at(self, key: int) -> set[int]:
        """The units that may be needed from a boundary on."""


class Visit:
    """One thread in a forward."""

    def __init__(self, pager: Forwards, session: _native.Session) -> None:
        self.pager = pager
        self.residence = pager.residence
        self.session = session
        self.held: set[int] = set()
        self.keepers: dict[int, _native.Session] = {}  # Of units whose memory is looked at beyond their points.

    def reach(self, key: int) -> None:
        self._before_release()
        if self.keepers:
            self._refuse_overlap(key)
        changed = self.session.enter(key, self.residence.stream())
        if changed is not None:
            released, acquired = changed
            for unit in released:
                self.held.discard(unit)
                self.residence.rest(unit)
            for unit in acquired:
                self.held.add(unit)
                self.residence.appear(unit)

    def leave(self) -> None:
        self._before_release()
        for unit in self.session.leave(self.residence.stream()):
            if unit in self.held:
                self.residence.rest(unit)
        self.held.clear()

    def _before_release(self) -> None:
        """Saves what may be lost with the next step. A unit of which a view is alive stays where it is until the end."""
        for unit in self.held:
            if self.residence.before_release(unit) and unit not in self.keepers:
                keeper = self.residence.pipeline.session()
                keeper.enter(unit_key(unit), self.residence.stream())
                self.keepers[unit] = keeper

    def _refuse_overlap(self, key: int) -> None:
        """Rather than wait for ever for memory that this thread keeps itself."""
        for kept in self.keepers:
            if not self.residence.overlapping[kept].isdisjoint(self.pager.needed_at(key)):
                name = self.residence.units[kept].name
                self.pager.kept_from_now_on.add(kept)
                raise RuntimeError(
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
