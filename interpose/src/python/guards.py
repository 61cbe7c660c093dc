"""Keeps exceptions of memlab's Python code from the program, and passes on the program's exceptions.

Embedded in libmemlab.so and run before program.py and agent.py, in their namespaces.
"""

import functools
import signal
import types
import warnings

# Reads a class through `type`: a metaclass of the program may override `kind.__mro__` and `kind.__dict__`.
_bases = type.__dict__["__mro__"].__get__
_namespace = type.__dict__["__dict__"].__get__


def _dictionary(thing):
    """Returns the attributes of a module or another plain object, read without calling its class."""
    try:
        found = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _code_of(handler):
    """Returns the code that runs when a handler is called. The handler may be wrapped, a method, or a callable object. Runs
    no code of the program's objects."""
    while type(handler) in (functools.partial, types.MethodType):
        handler = handler.func if type(handler) is functools.partial else handler.__func__
    if type(handler) is not types.FunctionType:
        called = (_namespace(base).get("__call__") for base in _bases(type(handler)))
        handler = next(filter(None, called), None)
    return handler.__code__ if type(handler) is types.FunctionType else None


def _raised_by_the_program(error):
    """Returns True if a signal handler of the program raised this while the agent ran: then the exception is the
    program's."""
    handlers = [_code_of(signal.getsignal(number)) for number in signal.valid_signals()]
    frames = error.__traceback__
    while frames is not None:
        if any(frames.tb_frame.f_code is code for code in handlers):
            return True
        frames = frames.tb_next
    return False


def _interrupted(error):
    """Returns True if the agent was interrupted from outside, not by a bug in it."""
    return not isinstance(error, Exception) or _raised_by_the_program(error)


def _on_module_calls(torch, before, after=None):
    """Calls functions before and after each call of a module. Returns the handles that remove them."""
    hooks = torch.nn.modules.module
    # PyTorch's advice to remove them would make it compile again, or be an error.
    warnings.filterwarnings("ignore", "Using `torch.compile.module.` when there are global hooks")
    handles = [hooks.register_module_forward_pre_hook(before)]
    if after is not None:
        handles.append(hooks.register_module_forward_hook(after, always_call=True))
    return handles


class _Harmless:
    """Keeps exceptions of the agent from the program, and passes on the program's exceptions."""

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
