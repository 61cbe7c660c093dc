"""The functions named by `%mlrun -f`: found before the statement runs, or while a cell defines them."""

from __future__ import annotations

import re
import symtable
from collections.abc import Sequence
from typing import Any

from IPython.core.error import UsageError

from memlab.compat.line_profiler import LineProfiler


class ProfiledNames:
    """Adds functions to a profiler as soon as their names are defined."""

    def __init__(
        self, names: Sequence[str], profiler: LineProfiler, user_ns: dict[str, Any], local_ns: dict[str, Any] | None
    ) -> None:
        self._names = names
        self._profiler = profiler
        self._user_ns = user_ns
        self._local_ns = local_ns
        self._found: dict[str, Any] = {}

    def require(self, source: str) -> None:
        """Adds the functions that exist. Raises UsageError for a name that does not exist and is not defined in `source`."""
        defined: set[str] | None = None
        for name in self._names:
            error = self._add(name)
            if error is None:
                continue
            if defined is None:
                defined = _defined_names(source)
            root = re.match(r"\w*", name)
            if root is None or (root.group() not in defined and "*" not in defined):
                raise UsageError(f"{name!r} is not a function: {error}")

    def add_found(self) -> None:
        """Adds the functions defined meanwhile, including redefined ones."""
        for name in self._names:
            self._add(name)

    def require_all(self) -> None:
        """Raises UsageError for a name that is still undefined."""
        for name in self._names:
            error = self._add(name)
            if error is not None:
                raise UsageError(f"{name!r} is not a function: {error}")

    def _add(self, name: str) -> str | None:
        """Looks up a name and adds its function. Returns the error if it is no function."""
        try:
            function = eval(name, self._user_ns, self._local_ns)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        if self._found.get(name) is not function:
            try:
                self._profiler.add_function(function)
            except TypeError as error:
                return str(error)
            self._found[name] = function
        return None


def _defined_names(source: str) -> set[str]:
    """The names that a cell defines or imports at its top level; `*` for a star import."""
    table = symtable.symtable(source, "<cell>", "exec")
    names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    return names | ({"*"} if re.search(r"^\s*from\s+\S+\s+import\s+\*", source, re.MULTILINE) else set())
