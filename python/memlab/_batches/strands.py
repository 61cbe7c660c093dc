"""Strands: pieces of one batch that are computed in threads, one at a time, and meet.

A strand runs until its next meeting, and then the next strand runs, in the same order each time: results are the same each
time too. The thread that made them waits meanwhile, merges what strands bring to a meeting, and gives each the result.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any


class Ended(BaseException):
    """Raised in a strand, at a meeting that will not take place."""


@dataclass(frozen=True)
class Meeting:
    """What a strand brings to a place where it waits for the others."""

    #: The same for all strands that meet.
    place: Any
    #: The place, for messages.
    name: str
    contribution: Any
    #: Makes one result of all contributions, which are in the order of strands.
    merge: Callable[[list[Any]], Any]


_HERE = threading.local()


class Strand:
    """A thread that runs from meeting to meeting."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        # No end to what may be put there: a strand that is told to end need not be waiting.
        self._orders: SimpleQueue[Any] = SimpleQueue()
        self._reports: SimpleQueue[Meeting | BaseException | None] = SimpleQueue()
        self._is_ending = False
        self._is_started = False
        # If the program exits all the same, nothing waits for it.
        self._thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._run,), name="memlab strand", daemon=True
        )
        #: Whether it is between two meetings.
        self.is_running = False

    @staticmethod
    def current() -> Strand | None:
        """The one that the calling thread is; None if it is none."""
        return getattr(_HERE, "strand", None)

    def meet(self, meeting: Meeting) -> Any:
        """Called in the strand: waits for the others. Returns what `merge` made of all contributions."""
        if self._is_ending:
            raise Ended
        self._reports.put(meeting)
        order = self._orders.get()
        if self._is_ending:
            raise Ended
        return order

    def go(self, order: Any) -> Meeting | None:
        """Has the strand run until its next meeting, with the result of the last one. Returns None when it has finished, and
        raises what it raised."""
        self.is_running = True
        if self._is_started:
            self._orders.put(order)
        else:
            self._is_started = True
            self._thread.start()
        report = self._reports.get()
        self.is_running = False
        if report is None:
            self._thread.join()
        if isinstance(report, BaseException):
            raise report
        return report

    def end(self) -> None:
        """Has the strand raise `Ended` at its next meeting, and waits for its thread."""
        self._is_ending = True
        if self._is_started:
            self._orders.put(None)
            self._thread.join()

    def _run(self) -> None:
        _HERE.strand = self
        try:
            self._work()
        except BaseException as error:
            self._reports.put(error)
        else:
            self._reports.put(None)


class Crew:
    """All strands of a batch."""

    def __init__(
        self,
        works: Sequence[Callable[[], None]],
        names: Sequence[str],
        resume: Callable[[int], None],
        suspend: Callable[[int, Meeting | None], None],
    ) -> None:
        """`resume(index)` is called before a strand runs, and `suspend(index, meeting)` when it waits, or has finished."""
        self._strands = [Strand(work) for work in works]
        self._names = names
        self._resume = resume
        self._suspend = suspend

    def end(self) -> None:
        """Ends those that have not finished."""
        # One at a time here too: first the one that an interrupt has left running.
        for strand in sorted(self._strands, key=lambda strand: not strand.is_running):
            strand.end()

    def run(self, until: Any = None) -> list[Any]:
        """Strands run and meet until all are at this place, or have finished. Then what they bring there is returned.

        Raises:
            RuntimeError: strands are at different places.
        """
        result = None
        while True:
            meetings = self._go_on(result)
            first = meetings[0]
            self._check_same(meetings)
            if first is None:
                return []
            contributions = [meeting.contribution for meeting in meetings if meeting is not None]
            if first.place == until:
                return contributions
            result = first.merge(contributions)
            del meetings, contributions

    def _go_on(self, result: Any) -> list[Meeting | None]:
        meetings = []
        for index, strand in enumerate(self._strands):
            self._resume(index)
            meeting = strand.go(result)
            self._suspend(index, meeting)
            meetings.append(meeting)
        return meetings

    def _check_same(self, meetings: Sequence[Meeting | None]) -> None:
        first = meetings[0]
        for name, meeting in zip(self._names, meetings, strict=True):
            if (None if meeting is None else meeting.place) != (None if first is None else first.place):
                raise RuntimeError(
                    f"{self._names[0]} went on to {_name_of(first)}, but {name} to {_name_of(meeting)}: which layers the "
                    "model runs depends on the samples, and BatchNorm needs all of a batch at once. Make it run the same "
                    "layers for all, or put BatchNorm into eval mode"
                )


def _name_of(meeting: Meeting | None) -> str:
    return "its end" if meeting is None else meeting.name
