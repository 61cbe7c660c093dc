"""Measures what the changes of `memlab run --fit` cost a step.

Embedded in libmemlab.so and run before fit.py, in the same namespace.
"""

import contextlib
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guards import _Harmless

_STEPS_BEFORE = 3  # They load kernels, and fill caches.
_STEPS_MEASURED = 3
_MOST_OTHERS = 64  # Steps of other optimizers, after which the first one has ended.

_AGAIN = "compute activations again"
_LOSS = "compute the loss in rows"
_STATE = "wait for the optimizer's state"


class _Costs:
    """GPU times of parts of steps, between events on the program's stream. Calls `report` once, when they are known.

    `report(step, parts)`: milliseconds of a step, and of its parts by name."""

    def __init__(self, torch, report, captures):
        self.torch = torch
        self.captures = captures  # Returns True if any thread captures a graph: then nothing may be asked of the GPU.
        self.report: Any = report
        self.optimizer: Any = None  # Whose steps count: the first that steps. Weak.
        self.steps = 0
        self.others = 0  # Steps of other optimizers since its last one.
        self.ends: list = []  # Events at the ends of steps.
        self.parts: dict = {}  # name -> [(event at its begin, event at its end)]
        self.open: set = set()  # Names of the parts that have begun. They may contain themselves.

    def attach(self, optimizers):
        optimizers.register_optimizer_step_post_hook(self.after_step)

    def is_measuring(self):
        return self.report is not None and 0 < len(self.ends) <= _STEPS_MEASURED

    def mark(self):
        """Returns an event on the program's stream, or None if that fails, which also ends the measurement."""
        with _Harmless(self.end):
            event = self.torch.cuda.Event(enable_timing=True)
            event.record()
            return event
        return None

    @contextlib.contextmanager
    def part(self, name):
        """Measures the code within as a part of the step."""
        if not self.is_measuring() or name in self.open or self.captures():
            yield
            return
        self.open.add(name)
        begin = self.mark()
        try:
            yield
        finally:
            self.open.discard(name)
            end = self.mark()
            if begin is not None and end is not None:
                self.parts.setdefault(name, []).append((begin, end))

    def after_step(self, optimizer, *_):
        if self.report is None:
            return
        with _Harmless(self.end):
            if self.optimizer is None:
                self.optimizer = weakref.ref(optimizer)
            if self.optimizer() is not optimizer:
                self.others += 1
                if self.others > _MOST_OTHERS:
                    self.end()
                return
            self.steps += 1
            self.others = 0
            if self.captures():
                self.end()
            elif len(self.ends) <= _STEPS_MEASURED:
                if self.steps >= _STEPS_BEFORE:
                    self.ends.append(self.mark())
            elif self.ends[-1].query():  # Nothing waits for the GPU.
                step, parts = self.times()
                self.report(step, parts)
                self.end()

    after_step._torchdynamo_disable = True  # type: ignore[attr-defined]

    def times(self):
        step = self.ends[0].elapsed_time(self.ends[-1]) / _STEPS_MEASURED
        spent = ((name, sum(begin.elapsed_time(end) for begin, end in times)) for name, times in self.parts.items())
        return step, {name: milliseconds / _STEPS_MEASURED for name, milliseconds in spent}

    def end(self, *_):
        self.report = None
        self.ends, self.parts = [], {}


def _unmeasured(_name):
    return contextlib.nullcontext()
