"""How a model is taken over and given back: its modules' ``forward`` wrapped, the rest of it untouched.

No wrapper modules and no hooks: a module gets an instance attribute ``forward`` (what accelerate does too), which
PyTorch's fast paths, that look for hooks, do not notice. What is put on a module for this is left out when it is
pickled or copied: a copy of a paged model is an ordinary model.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

MARK = "memlab"  # The attribute of the outermost module that holds the plan.
OURS = ("forward", "_apply", "__getstate__", MARK)


class Takeover:
    """The attributes that were put on a model's modules, so that they can be taken off again."""

    def __init__(self, model: nn.Module, what: str) -> None:
        self.model = model
        self.what = what  # "paged", "chunked": for messages.
        self.before: dict[nn.Module, dict[str, Any]] = {}

    def guard(self) -> None:
        """Makes every module refuse to be moved or cast, and be copied as what it was."""
        for module in self.model.modules():
            self._set(module, "_apply", _refusal(self.what))
            self._set(module, "__getstate__", functools.partial(_state, module, self))

    def mark(self, plan: Any) -> None:
        self._set(self.model, MARK, plan)

    def wrap(self, module: nn.Module, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Puts `wrapper(forward)` where `module.forward` is looked up."""
        original = module.forward
        wrapped = wrapper(original)
        functools.update_wrapper(wrapped, original)
        left_to_python(wrapped)
        self._set(module, "forward", wrapped)

    def unwrap(self, module: nn.Module) -> None:
        self._restore(module, "forward")

    def release(self) -> None:
        """Takes everything off again."""
        for module, before in list(self.before.items()):
            for name in list(before):
                self._restore(module, name)

    def _set(self, module: nn.Module, name: str, value: Any) -> None:
        self.before.setdefault(module, {}).setdefault(name, module.__dict__.get(name, _ABSENT))
        module.__dict__[name] = value

    def _restore(self, module: nn.Module, name: str) -> None:
        value = self.before[module].pop(name, _UNKNOWN)
        if value is _ABSENT:
            module.__dict__.pop(name, None)
        elif value is not _UNKNOWN:
            module.__dict__[name] = value

    def original_state(self, module: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
        """A module's attributes as they were before."""
        state = dict(state)
        for name, value in self.before.get(module, {}).items():
            if value is _ABSENT:
                state.pop(name, None)
            else:
                state[name] = value
        for kind in ("_parameters", "_buffers"):
            state[kind] = dict(state[kind])
        return state


_ABSENT = object()
_UNKNOWN = object()


def taken(model: nn.Module) -> Any:
    """The plan of a model (or of the part of it, or the whole around it) that is paged or chunked already, or None."""
    for module in model.modules():
        if MARK in module.__dict__:
            return module.__dict__[MARK]
        guard = module.__dict__.get("_apply")
        if getattr(guard, "memlab", False):
            return guard
    return None


def left_to_python(function: Any) -> None:
    """Has torch.compile run a function as it is, and compile only what it calls.

    The marks are those that ``torch.compiler.disable(recursive=False)`` sets, which would import all of the compiler.
    """
    function._torchdynamo_disable = True
    _skip(function.__code__)


def _skip(code: CodeType) -> None:
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        actions = frames._FrameAction
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(actions.SKIP, actions.DEFAULT))
    elif hasattr(frames, "skip_code"):  # PyTorch 2.6 and before.
        frames.skip_code(code)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            _skip(inner)


def modules_left_to_python(*modules: ModuleType) -> None:
    """The same for all functions and methods of these modules."""
    for module in modules:
        for value in vars(module).values():
            members = vars(value).values() if isinstance(value, type) else [value]
            for member in members:
                function = inspect.unwrap(getattr(member, "__func__", member)) if callable(member) else member
                if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                    left_to_python(function)


def _refusal(what: str) -> Callable[..., Any]:
    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError(
            f"this model is {what} by memlab: it runs on its device already, and its weights cannot be moved or cast. "
            "Give it back with memlab.unpage(model) first."
        )

    refuse.memlab = True  # type: ignore[attr-defined]
    return refuse


def _state(module: nn.Module, takeover: Takeover) -> Any:
    """What pickle and copy are given: the module as it would be without memlab."""
    method = getattr(type(module), "__getstate__", None)
    if method is None or method is getattr(object, "__getstate__", None):
        return takeover.original_state(module, module.__dict__)
    state = method(module)
    return takeover.original_state(module, state) if isinstance(state, dict) and "_parameters" in state else state
