"""A thread in a forward: the boundaries it reaches, and the units it holds."""

from __future__ import annotations

import threading
from collections.abc import Sized

from memlab import _native
from memlab._paging.device_pool import DevicePool
from memlab._paging.tracing import Tracer
from memlab._paging.viewed_units import ViewedUnits


class ForwardContext:
    """A thread in a forward for which units are loaded."""

    def __init__(self, pool: DevicePool, viewed: ViewedUnits, session: _native.Session, active_forwards: Sized) -> None:
        self.pool = pool
        self.viewed = viewed
        self.session = session
        self.active_forwards = active_forwards  # The threads in a forward.
        self.held: set[int] = set()
        self.ended = False  # The forward has ended, and not by an exception.
        self.view_sessions: dict[int, _native.Session] = {}  # By unit that is held after its points for a view.

    def reach(self, key: int) -> None:
        """At the boundary `key`: releases units that are no longer needed and loads those that are."""
        pool, held = self.pool, self.held
        if held:
            self._before_release(pool.needed_at(key))
        if self.viewed.held:
            self._refuse_overlap(key)
        changed = self.session.enter(key, pool.stream())
        if changed is not None:
            released, acquired = changed
            for unit in released:
                held.discard(unit)
                pool.unit_released(unit)
            for unit in acquired:
                held.add(unit)
                pool.unit_acquired(unit)

    def pause(self) -> None:
        """The thread goes on on another device: releases all units, as at the forward's end, and loads those of the next."""
        self._before_release(set())
        self._release_all()

    def leave(self) -> None:
        refused = None
        try:
            self._before_release(set())
        except RuntimeError as error:
            refused = error
        self._release_all()
        if refused is not None and self.ended:
            raise refused

    def _release_all(self) -> None:
        for unit in self.session.leave(self.pool.stream()):
            if unit in self.held:
                self.held.discard(unit)
                self.pool.unit_released(unit)
        self.held.clear()

    def _before_release(self, needed: set[int]) -> None:
        """Saves what the next step may overwrite. A unit of which a view is alive is held until the forward's end."""
        for unit in self.held:
            has_views = self.pool.save_before_release(unit)
            if has_views and unit not in needed and unit not in self.view_sessions:
                if len(self.active_forwards) > 1:
                    # Another thread may be waiting for this memory, and would wait for as long as the view lives.
                    raise self.viewed.unforeseen(unit)
                self.view_sessions[unit] = self.viewed.hold(unit)

    def _refuse_overlap(self, key: int) -> None:
        """Raises rather than wait for memory that this thread or another holds for a view."""
        for unit in list(self.viewed.held):
            if not self.pool.overlapping[unit].isdisjoint(self.pool.needed_at(key)):
                raise self.viewed.unforeseen(unit)


class TracedContext:
    """A thread in a forward that is traced."""

    held: frozenset[int] = frozenset()

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.reach = tracer.boundary
        self.ended = False
        self.view_sessions: dict[int, _native.Session] = {}

    def leave(self) -> None:
        """Releases nothing, as nothing is held."""


class RerunContext:
    """A thread that runs a part of a traced forward once more."""

    held: frozenset[int] = frozenset()

    def reach(self, key: int) -> None:
        """Loads and notes nothing."""


class ThreadState(threading.local):
    context: ForwardContext | TracedContext | RerunContext | None = None
    session: _native.Session | None = None
