"""The code of functions passed to a tool, and their source."""

from __future__ import annotations

import inspect
import os
import re
from dataclasses import dataclass
from types import CodeType
from typing import Any

_NUMBERED_CELL = re.compile(r"<?ipython-input-(\d+)-")


@dataclass(frozen=True)
class Code:
    """A function's code, and its possible names in the trace."""

    code: CodeType
    name: str
    files: list[str]
    names: list[str]
    first_line: int
    last_line: int

    def source(self) -> list[tuple[int, str]]:
        """Its source lines with their numbers; empty if the source is not available."""
        try:
            lines, first = inspect.getsourcelines(self.code)
        except (OSError, TypeError):
            return []
        return [(first + index, line.rstrip("\n")) for index, line in enumerate(lines)]

    def def_line(self) -> int:
        """The line with `def`: the code begins at its first decorator."""
        for number, text in self.source():
            if text.lstrip().startswith(("def ", "async def ", "lambda")):
                return number
        return self.first_line


def code_of(function: Any) -> Code:
    """The code of a function, method, module (its `forward`), or of a function wrapped by a decorator or `torch.compile`.

    Raises TypeError for an object without Python code.
    """
    unwrapped = _unwrapped(function)
    code = getattr(unwrapped, "__code__", None)
    if not isinstance(code, CodeType):
        raise TypeError(f"{function!r} has no Python code: pass a Python function, a method or a module")
    name = getattr(unwrapped, "__qualname__", code.co_name)
    files = {code.co_filename, os.path.abspath(code.co_filename)}
    cell = _NUMBERED_CELL.match(os.path.basename(code.co_filename))
    if cell is not None:
        files.add(f"In[{cell.group(1)}]")
    lines = [line for _, _, line in code.co_lines() if line is not None]
    names = {code.co_name, name, getattr(code, "co_qualname", code.co_name)}
    return Code(code, name, sorted(files), sorted(names), code.co_firstlineno, max(lines, default=code.co_firstlineno))


def _unwrapped(function: Any) -> Any:
    for _ in range(100):
        inner = getattr(function, "_torchdynamo_orig_callable", None)
        if inner is None and isinstance(function, (staticmethod, classmethod)):
            inner = function.__func__
        if inner is None:
            inner = getattr(function, "__wrapped__", None)
        if inner is None and inspect.ismethod(function):
            inner = function.__func__
        if inner is None and not hasattr(function, "__code__") and not isinstance(function, type):
            inner = getattr(getattr(function, "_orig_mod", function), "forward", None)
        if inner is None or inner is function:
            return function
        function = inner
    return function
