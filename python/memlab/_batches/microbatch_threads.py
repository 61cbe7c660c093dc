"""The micro-batches of one batch, each in its own thread. They run one at a time, and meet.

Each thread in turn runs until its next meeting, always in the same order, so results are reproducible. Meanwhile the
caller's thread waits. It merges the contributions to a meeting, and gives each thread the result.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any


class ThreadCancelled(BaseException):
    """Raised in a thread at a meeting that was cancelled."""


@dataclass(frozen=True)
class Meeting:
    """A thread's contribution to a place where it waits for the others."""

    #: The same for all threads that meet.
    place: Any
    #: The place, for messages.
    name: str
    contribution: Any
    #: Merges all contributions, which are in the order of threads, into one result.
    merge: Callable[[list[Any]], Any]


_HERE = threading.local()


class MicrobatchThread:
    """The thread of a micro-batch, which runs from meeting to meeting."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        # Unbounded: a thread that is to end need not be waiting.
        self._orders: SimpleQueue[Any] = SimpleQueue()
        self._reports: SimpleQueue[Meeting | BaseException | None] = SimpleQueue()
        self._is_ending = False
        self._is_started = False
        # A daemon, so that the exit of the program does not wait for it.
        self._thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._run,), name="memlab micro-batch", daemon=True
        )
        #: True between two meetings.
        self.is_running = False

    @staticmethod
    def current() -> MicrobatchThread | None:
        """The micro-batch thread of the caller; None in any other thread."""
        return getattr(_HERE, "thread", None)

    def meet(self, meeting: Meeting) -> Any:
        """Waits for the other threads; called within the thread. Returns the merged contributions."""
        if self._is_ending:
            raise ThreadCancelled
        self._reports.put(meeting)
        order = self._orders.get()
        if self._is_ending:
            raise ThreadCancelled
        return order

    def go(self, order: Any) -> Meeting | None:
        """Runs the thread until its next meeting, with the result of the last one. Returns None when it has finished, and
        raises its exception."""
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
        """Makes the thread raise `ThreadCancelled` at its next meeting, and waits until it has ended."""
        self._is_ending = True
        if self._is_started:
            self._orders.put(None)
            self._thread.join()

    def _run(self) -> None:
        _HERE.thread = self
        try:
            self._work()
        except BaseException as error:
            self._reports.put(error)
        else:
            self._reports.put(None)


class MicrobatchThreads:
    """All threads of a batch."""

    def __init__(
        self,
        works: Sequence[Callable[[], None]],
        names: Sequence[str],
        resume: Callable[[int], None],
        suspend: Callable[[int, Meeting | None], None],
    ) -> None:
        """`resume(index)` is called before a thread runs, and `suspend(index, meeting)` when it waits or has finished."""
        self._threads = [MicrobatchThread(work) for work in works]
        self._names = names
        self._resume = resume
        self._suspend = suspend

    def end(self) -> None:
        """Ends the threads that have not finished."""
        # One at a time here too. A thread that an interrupt has left running ends first.
        for thread in sorted(self._threads, key=lambda thread: not thread.is_running):
            thread.end()

    def run(self, until: Any = None) -> list[Any]:
        """Runs the threads from meeting to meeting until all are at this place, or have finished. Returns their
        contributions to this place.

        Raises:
            RuntimeError: threads are at different places.
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
        for index, thread in enumerate(self._threads):
            self._resume(index)
            meeting = thread.go(result)
            self._suspend(index, meeting)
            meetings.append(meeting)
        return meetings

    def _check_same(self, meetings: Sequence[Meeting | None]) -> None:
        first = meetings[0]
        for name, meeting in zip(self._names, meetings, strict=True):
            if (None if meeting is None else meeting.place) != (None if first is None else first.place):
                raise RuntimeError(
                    f"{self._names[0]} went on to {_name_of(first)}, but {name} to {_name_of(meeting)}: the layers that run "
                    "depend on the samples, but BatchNorm needs the whole batch at once. Run the same layers for all "
                    "samples, or put BatchNorm into eval mode"
                )


def _name_of(meeting: Meeting | None) -> str:
    return "its end" if meeting is None else meeting.name
