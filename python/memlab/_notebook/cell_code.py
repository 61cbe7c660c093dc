"""Runs the text below a cell magic as the notebook runs a plain cell: under the cell's name, with its line numbers."""

from __future__ import annotations

import ast
from collections.abc import Callable
from types import CodeType
from typing import Any

from IPython.core.error import UsageError


class CellCode:
    """The code of a cell, compiled statement by statement.

    display: show the value of the last expression, as in a cell without a magic.
    """

    def __init__(self, shell: Any, text: str, magic: str, display: bool = True) -> None:
        self._shell = shell
        number = _number(shell)
        self.name = f"In[{number}]"
        blank = len(text) - len(text.lstrip("\n"))
        source = "\n" * (_lines_above(shell, text) + blank) + shell.transform_cell(text)
        if shell.should_run_async(text, transformed_cell=source):
            raise UsageError(f"{magic} cannot run a cell with `await` outside a function: use `with memlab.watch()` in it")
        self.source = source
        self.file: str = shell.compile.cache(source, number)
        tree = shell.transform_ast(shell.compile.ast_parse(source, filename=self.file))
        quiet = not display or text.rstrip().endswith(";")
        self._codes = [self._compiled(node, self._is_shown(node, node is tree.body[-1]) and not quiet) for node in tree.body]

    def _is_shown(self, node: ast.stmt, is_last: bool) -> bool:
        shown = self._shell.ast_node_interactivity
        return isinstance(node, ast.Expr) and (shown == "all" or (is_last and shown != "none"))

    def _compiled(self, node: ast.stmt, shown: bool) -> CodeType:
        if shown:
            code: CodeType = self._shell.compile(ast.Interactive([node]), self.file, "single")
        else:
            code = self._shell.compile(ast.Module([node], []), self.file, "exec")
        return code

    def run(self, local_ns: dict[str, Any] | None = None, after_statement: Callable[[], None] | None = None) -> None:
        """Runs the code in the user's namespace. Calls `after_statement` after each top-level statement."""
        __tracebackhide__ = True
        for code in self._codes:
            if local_ns is None or local_ns is self._shell.user_ns:
                exec(code, self._shell.user_ns)
            else:
                exec(code, self._shell.user_ns, local_ns)
            if after_statement is not None:
                after_statement()


def _number(shell: Any) -> int:
    """The number of the running cell. `execution_count` is that of the next one in some versions of IPython."""
    history = shell.history_manager
    return len(history.input_hist_raw) - 1 if history is not None else shell.execution_count


def _lines_above(shell: Any, text: str) -> int:
    """Number of lines of the cell above the magic's text: the magic's line, and those of magics around it."""
    history = shell.history_manager
    raw = history.input_hist_raw[-1] if history is not None and history.input_hist_raw else ""
    body = text.rstrip()
    # IPython omits empty lines at the beginning of a cell, and counts from the first other line.
    whole = raw.strip("\n").rstrip()
    # Without history (store_history=False) the last entry is another cell.
    return whole[: len(whole) - len(body)].count("\n") if body and whole.endswith(body) else 1
