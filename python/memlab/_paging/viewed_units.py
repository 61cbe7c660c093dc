"""Units with a view that outlives their layer: their places in the ring stay occupied."""

from __future__ import annotations

from memlab import _native
from memlab._paging.boundaries import unit_key
from memlab._paging.device_pool import DevicePool


class ViewedUnits:
    """Holds each unit with a session of the pipeline, until the forward's end, or longer while the view is alive."""

    def __init__(self, pool: DevicePool) -> None:
        self.pool = pool
        self.held: dict[int, None] = {}
        self.beyond_forward: dict[int, _native.Session] = {}  # By unit: sessions for views that outlived their forward.
        self.resident_next: set[int] = set()  # Units that are resident from the next forward on.

    def hold(self, unit: int) -> _native.Session:
        session = self.pool.pipeline.session()
        session.enter(unit_key(unit), self.pool.stream())
        self.held[unit] = None
        return session

    def end_forward(self, sessions: dict[int, _native.Session], ended: bool) -> None:
        """Ends a thread's forward and releases its units. `ended`: without an exception, whose traceback has views too."""
        for unit, session in sessions.items():
            if ended and self.pool.has_views(unit):
                self.beyond_forward.setdefault(unit, session)
            else:
                self.held.pop(unit, None)
                session.leave(self.pool.stream())

    def any_left(self) -> bool:
        """Releases units whose views are gone. Returns True if some are left, which the next placement makes resident."""
        for unit in [unit for unit in self.beyond_forward if not self.pool.has_views(unit)]:
            self.held.pop(unit, None)
            self.beyond_forward.pop(unit).leave(self.pool.stream())
        return bool(self.beyond_forward or self.resident_next)

    def clear(self) -> set[int]:
        """Releases all units. Returns those that the next placement makes resident."""
        for session in self.beyond_forward.values():
            session.leave(self.pool.stream())
        left = self.resident_next | self.beyond_forward.keys()
        self.beyond_forward.clear()
        self.resident_next.clear()
        self.held.clear()
        return left

    def unforeseen(self, unit: int) -> RuntimeError:
        """Returns the error for a unit whose place is needed although a view of it is alive."""
        name = self.pool.units[unit].name
        self.resident_next.add(unit)
        return RuntimeError(
            f"a view of {name} is still in use after the layer that it belongs to, which was not so in the traced forward, "
            "and its memory is needed for the next layer. It stays on the device from the next forward on: run this one "
            "again"
        )
