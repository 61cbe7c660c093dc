"""A thread in a forward: the boundaries it reaches, and the units it holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sized
from typing import Any

from memlab import _native
from memlab._paging.boundaries import WrappedModule
from memlab._paging.device_pool import DevicePool
from memlab._paging.native_reads import READS
from memlab._paging.tracing import Tracer
from memlab._paging.viewed_units import ViewedUnits


class ForwardContext(_native.UnitHolder):
    """A thread in a forward for which units are loaded.

    Native code runs at each boundary, and calls the methods here for the few units that need more.
    """

    def __new__(
        cls, pool: DevicePool, viewed: ViewedUnits, session: _native.Session, _active_forwards: Sized
    ) -> ForwardContext:
        index = None if pool.device.type == "cpu" else pool.device.index
        return super().__new__(cls, READS, pool.placed_units, session, viewed.held, index)

    def __init__(self, pool: DevicePool, viewed: ViewedUnits, _session: _native.Session, active_forwards: Sized) -> None:
        self.pool = pool
        self.viewed = viewed
        self.active_forwards = active_forwards  # Threads in a forward.
        self.ended = False  # The forward ended without an exception.
        self.view_sessions: dict[int, _native.Session] = {}  # By unit that is held for a view after its points.

    def leave(self) -> None:
        refused = None
        try:
            self.save()
        except RuntimeError as error:
            refused = error
        self.release_all()
        if refused is not None and self.ended:
            raise refused

    def save_writes(self, unit: int) -> None:
        self.pool.edits.save_writes(unit)

    def take_edit(self, unit: int) -> None:
        self.pool.edits.take_edit(unit)

    def take_assigned(self, unit: int) -> None:
        self.pool.edits.take_assigned(self.pool.placed[unit])

    def show_lists(self, unit: int, loaded: bool) -> None:
        self.pool.placed[unit].show_lists(loaded)

    def hold_viewed(self, unit: int) -> None:
        """Holds a unit with a live view until the forward's end."""
        if unit in self.view_sessions:
            return
        if len(self.active_forwards) > 1:
            # Another thread may be waiting for this memory, and would wait as long as the view lives.
            raise self.viewed.unforeseen(unit)
        self.view_sessions[unit] = self.viewed.hold(unit)

    def refuse_overlap(self, key: int) -> None:
        """Raises instead of waiting for memory that this thread or another holds for a view."""
        for unit in list(self.viewed.held):
            if not self.pool.overlapping[unit].isdisjoint(self.pool.placed_units.needed_at(key)):
                raise self.viewed.unforeseen(unit)


class TracedContext:
    """A thread in a traced forward."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.ended = False
        self.view_sessions: dict[int, _native.Session] = {}

    def enter(self, wrapped: WrappedModule) -> None:
        self.tracer.boundary(wrapped.enter_key)

    def call(self, wrapped: WrappedModule, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.tracer.boundary(wrapped.enter_key)
        result = original(*args, **kwargs)
        self.tracer.boundary(wrapped.exit_key)
        return result

    def leave(self) -> None:
        """Does nothing, because nothing is held."""


class RerunContext:
    """A thread that runs a part of a traced forward once more. Loads and records nothing."""

    def call(self, _wrapped: WrappedModule, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return original(*args, **kwargs)


class ThreadState(threading.local):
    context: ForwardContext | TracedContext | RerunContext | None = None
    session: _native.Session | None = None
