"""Methods besides `forward` that compute with a module's tensors, such as CLIP's ``encode_text``.

A call of such a method is a forward.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from memlab._paging.torch_private import TENSOR_DICTS

# Attribute names that follow `self` in a function: ("wte", "weight") of `self.wte.weight`.
_Path = tuple[str, ...]


def entry_methods(module: nn.Module) -> Iterator[str]:
    """Yields the names of a module's methods that read a parameter or buffer of the module or of modules in it.

    PyTorch's own classes have none: their methods receive the tensors they compute with, or initialize them.
    """
    seen: set[str] = {"forward", *vars(nn.Module), *vars(module)}
    for cls in type(module).__mro__:
        if cls is nn.Module:
            return
        if cls.__module__.partition(".")[0] == "torch":
            continue
        for name, function in vars(cls).items():
            if name in seen or not isinstance(function, FunctionType):
                continue
            seen.add(name)
            if any(_is_tensor(module, path) for path in _paths(function)):
                yield name


@functools.lru_cache(maxsize=4096)
def _paths(function: FunctionType) -> tuple[_Path, ...]:
    """Returns the attributes that a function reads of its first argument; none for generators, which compute later."""
    code = inspect.unwrap(function).__code__
    is_lazy = code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR)
    if is_lazy or not code.co_argcount:
        return ()
    return tuple(dict.fromkeys(_paths_in(code, code.co_varnames[0])))


def _paths_in(code: CodeType, owner: str) -> Iterator[_Path]:
    path: list[str] | None = None
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and path is not None:
            path.append(instruction.argval)
            yield tuple(path)
        elif instruction.opname != "CACHE":
            path = [] if _loads(instruction, owner) else None
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _paths_in(constant, owner)


def _loads(instruction: dis.Instruction, variable: str) -> bool:
    """Returns True if an instruction leaves a variable on top of the stack.

    From CPython 3.13 on, one instruction may load two.
    """
    if not instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
        return False
    loaded: Any = instruction.argval
    return (loaded[-1] if isinstance(loaded, tuple) else loaded) == variable


def _is_tensor(module: nn.Module, path: _Path) -> bool:
    *modules, name = path
    for step in modules:
        inner = module.__dict__["_modules"].get(step)
        if inner is None:
            return False
        module = inner
    return any(module.__dict__[attribute].get(name) is not None for attribute in TENSOR_DICTS)
