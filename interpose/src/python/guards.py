"""Keeps exceptions of memlab's own Python code from the program, and passes on those that are the program's.

Embedded in libmemlab.so and run before program.py and agent.py, in their namespaces.
"""

import functools
import signal


def _code_of(handler):
    """The code that runs when a handler is called: the handler may be wrapped, a method, or a callable object."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not callable(handler):
        return None
    return getattr(handler, "__code__", None) or getattr(handler.__call__, "__code__", None)


def _raised_by_the_program(error):
    """Whether a signal handler of the program raised this while the agent ran: then the exception is the program's."""
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    frames = error.__traceback__
    while frames is not None:
        if frames.tb_frame.f_code in handlers:
            return True
        frames = frames.tb_next
    return False


def _interrupted(error):
    """Whether the agent was interrupted from outside, not by a bug in it."""
    return not isinstance(error, Exception) or _raised_by_the_program(error)


class _Harmless:
    """Keeps exceptions of the agent from the program, and passes on those that are the program's."""

    def __init__(self, otherwise=None):
        self.otherwise = otherwise

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if kind is None or _interrupted(error):
            return False
        if self.otherwise is not None:
            self.otherwise(error)
        return True
