"""`memlab.LineProfiler`, `memlab.profile` and `memlab.profile_every`: GPU memory by line of chosen functions.

The names are those of pytorch_memlab. The figures come from the live books. Allocations are attributed by their Python
stacks. A line's peak is the highest number of allocated bytes while it ran.
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TextIO, TypeVar, overload

from memlab import _native
from memlab._tools.functions import Code, code_of
from memlab.compat._lines import hooks
from memlab.compat._lines.columns import DEFAULT_COLUMNS, LineFigures, value_of
from memlab.compat._lines.table import FunctionProfile, as_html, as_text
from memlab.process_recording import ensure_started, why_not

__all__ = ["DEFAULT_COLUMNS", "LineProfiler", "clear_global_line_profiler", "profile", "profile_every", "set_target_gpu"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_target_gpu = 0


def set_target_gpu(gpu_id: int) -> None:
    """Sets the GPU that all line profilers profile from now on, by its number in `torch.cuda.device`.

    >>> import memlab
    >>> memlab.set_target_gpu(0)
    """
    global _target_gpu
    _target_gpu = gpu_id
    _native.set_target_device(gpu_id)


class LineProfiler:
    """GPU memory by line of functions, while enabled: call `enable` and `disable`, or use it in a `with`.

    functions: Python functions, methods, modules (their `forward`), and functions wrapped by decorators or `torch.compile`.
    target_gpu: the GPU whose counters are shown; `set_target_gpu` changes it.

    >>> import memlab
    >>> def double(x):
    ...     return x + x
    >>> with memlab.LineProfiler(double) as prof:
    ...     double(1)
    2
    >>> prof.print_stats()  # doctest: +ELLIPSIS
    ## double
    ...
    """

    def __init__(self, *functions: Any, target_gpu: int = 0, **_ignored: Any) -> None:
        self._target_gpu = target_gpu
        self._codes: list[Code] = []
        self._profile = 0
        self._enabled = 0
        self._before = 0
        self._lock = threading.RLock()
        for function in functions:
            self.add_function(function)

    def add_function(self, function: Any) -> None:
        """Profiles one more function. Raises TypeError if it has no Python code.

        >>> import memlab
        >>> prof = memlab.LineProfiler()
        >>> prof.add_function(len)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        TypeError: <built-in function len> has no Python code: ...
        """
        code = code_of(function)
        with self._lock:
            if any(known.code is code.code for known in self._codes):
                return
            self._codes.append(code)
            if self._profile:
                self._add(len(self._codes) - 1)
                if self._enabled:
                    hooks.add(code.code, code.first_line, self._profile, len(self._codes) - 1)

    def enable(self) -> None:
        """Starts counting. Nests with `disable`.

        >>> import memlab
        >>> prof = memlab.LineProfiler()
        >>> prof.enable()
        >>> prof.disable()
        """
        with self._lock:
            self._enabled += 1
            if self._enabled > 1:
                return
            self._before = _target_gpu
            set_target_gpu(self._target_gpu)
            if ensure_started() and not _native.profile_enable(self._profile, True):
                # The first time, and after `memlab.stop`.
                self._profile = _native.profile_new()
                for index in range(len(self._codes)):
                    self._add(index)
                _native.profile_enable(self._profile, True)
            if self._profile:
                for index, code in enumerate(self._codes):
                    hooks.add(code.code, code.first_line, self._profile, index)

    def disable(self) -> None:
        """Stops counting. Other line profilers, debuggers and coverage tools are not affected.

        >>> import memlab
        >>> prof = memlab.LineProfiler()
        >>> prof.disable()
        """
        with self._lock:
            if self._enabled == 0:
                return
            self._enabled -= 1
            if self._enabled == 0:
                set_target_gpu(self._before)
                if self._profile:
                    for code in self._codes:
                        hooks.remove(code.code, self._profile)
                    _native.profile_enable(self._profile, False)

    def _add(self, index: int) -> None:
        code = self._codes[index]
        _native.profile_add(self._profile, code.files, code.names, code.first_line, code.last_line)

    def clear(self) -> None:
        """Clears the figures, but keeps the functions.

        >>> import memlab
        >>> prof = memlab.LineProfiler()
        >>> prof.clear()
        """
        if self._profile:
            _native.profile_clear(self._profile)

    def __enter__(self) -> LineProfiler:
        self.enable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.disable()

    def __del__(self, drop: Callable[[int], None] = _native.profile_drop) -> None:
        # A default argument outlives the names of modules, which the interpreter clears at its end.
        if getattr(self, "_profile", 0) and not self._enabled:
            drop(self._profile)

    def profiles(self, func: Any = None) -> list[FunctionProfile]:
        """Returns the figures of all functions, or of `func`, by line.

        >>> import memlab
        >>> prof = memlab.LineProfiler()
        >>> prof.profiles()
        []
        """
        found = self._figures()
        wanted = None if func is None else code_of(func).code
        codes = [(index, code) for index, code in enumerate(self._codes) if wanted is None or code.code is wanted]
        if wanted is not None and not codes:
            raise ValueError(f"{func!r} is not profiled: pass it to LineProfiler() or add_function()")
        return [FunctionProfile(code, lines := found.get(index, {}), self._no_data(lines)) for index, code in codes]

    def _figures(self) -> dict[int, dict[int, LineFigures]]:
        by_line: dict[tuple[int, int], list[tuple[int, LineFigures]]] = {}
        for function, line, device, hits, current, peak, allocated, freed, delta, own, sample in _native.profile_figures(
            self._profile
        ):
            code = self._codes[function]
            if line == code.first_line:
                line = code.def_line()
            counters = {"current": current, "peak": peak, "allocated": allocated, "freed": freed}
            figures = LineFigures(hits, counters, delta, own[0], own[1], own[2], own[3], sample)
            by_line.setdefault((function, line), []).append((device, figures))
        found: dict[int, dict[int, LineFigures]] = {}
        for (function, line), of_devices in by_line.items():
            # The devices profiled while the line ran. If only other threads ran the line, the device profiled now.
            profiled = [figures for _, figures in of_devices if figures.hits]
            profiled = profiled or [figures for device, figures in of_devices if device == self._target_gpu]
            for figures in profiled:
                found.setdefault(function, {}).setdefault(line, LineFigures()).add(figures)
        return found

    def _no_data(self, lines: dict[int, LineFigures]) -> str | None:
        if lines:
            return None
        reason = why_not()
        if reason is not None:
            return reason
        if not self._profile:
            return "the profiler was never enabled: use it in a `with`, or call enable()"
        return "the function was not called while the profiler was enabled"

    def display(self, func: Any = None, columns: Sequence[str] = DEFAULT_COLUMNS) -> None:
        """Shows the figures of `func`, or of all functions: HTML in a notebook, text elsewhere.

        columns: keys of `torch.cuda.memory_stats()` with three parts, such as ``"active_bytes.all.peak"``, and
            ``"line.peak_delta"``, ``"line.allocated"``, ``"line.freed"``, ``"line.kept"``, ``"line.backward"``,
            ``"line.allocations"``, ``"line.hits"``. A ``peak`` is the highest value while the line ran. The other counters
            are values at its end. Of several executions, the highest value is shown. ValueError for other names.

        >>> import memlab
        >>> memlab.LineProfiler().display(columns=["active_bytes.all.most"])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: 'active_bytes.all.most' is no column: ...
        """
        tables = self.profiles(func)
        for column in columns:
            value_of(column)
        if _in_notebook():
            from IPython.display import display

            shown = "".join(as_html(table, columns) for table in tables)
            text = "\n\n".join(as_text(table, columns) for table in tables)
            display({"text/html": shown, "text/plain": text}, raw=True)
        else:
            self.print_stats(func, columns)

    def print_stats(self, func: Any = None, columns: Sequence[str] = DEFAULT_COLUMNS, stream: TextIO | None = None) -> None:
        """Writes the figures as text, to `stream` or stdout. `func` and `columns` as for `display`.

        >>> import memlab
        >>> memlab.LineProfiler().print_stats()
        no data: no function is profiled: pass functions to LineProfiler()
        <BLANKLINE>
        """
        stream = sys.stdout if stream is None else stream
        if not self._codes:
            stream.write("no data: no function is profiled: pass functions to LineProfiler()\n")
        stream.write("\n\n".join(as_text(table, columns) for table in self.profiles(func)))
        stream.write("\n")

    def _repr_html_(self) -> str:
        return "".join(as_html(table, DEFAULT_COLUMNS) for table in self.profiles())


def _in_notebook() -> bool:
    """Returns True if this code runs in a kernel whose front end shows HTML."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    shell = get_ipython()
    return shell is not None and shell.__class__.__name__ != "TerminalInteractiveShell"


_global_line_profiler = LineProfiler()
_shown_at_exit: list[tuple[Any, Sequence[str]]] = []


def clear_global_line_profiler() -> None:
    """Clears the figures that `profile` has counted.

    >>> import memlab
    >>> memlab.clear_global_line_profiler()
    """
    _global_line_profiler.clear()


@overload
def profile(func: _Function, columns: Sequence[str] = ...) -> _Function: ...
@overload
def profile(func: None = None, columns: Sequence[str] = ...) -> Callable[[_Function], _Function]: ...
def profile(func: Any = None, columns: Sequence[str] = DEFAULT_COLUMNS) -> Any:
    """Profiles every call of a function, and prints the highest value of each figure when the program ends.

    A decorator, with or without arguments. `columns` as for `LineProfiler.display`.

    >>> import memlab
    >>> @memlab.profile(columns=("active_bytes.all.peak",))
    ... def double(x):
    ...     return x + x
    """
    if func is None:
        return functools.partial(profile, columns=columns)
    for column in columns:
        value_of(column)
    _global_line_profiler.add_function(func)
    if not _shown_at_exit:
        _global_line_profiler.enable()
        atexit.register(_print_at_exit)
    _shown_at_exit.append((func, columns))
    return func


def _print_at_exit() -> None:
    _global_line_profiler.disable()
    for func, columns in _shown_at_exit:
        _global_line_profiler.print_stats(func, columns)


def profile_every(
    output_interval: int = 1, enable: bool = True, columns: Sequence[str] = DEFAULT_COLUMNS
) -> Callable[[_Function], _Function]:
    """Profiles a function, and prints its figures after every `output_interval` calls. A decorator.

    enable: False returns the function unchanged. `columns` as for `LineProfiler.display`. ValueError for an interval below
        1.

    >>> import memlab
    >>> @memlab.profile_every(10)
    ... def double(x):
    ...     return x + x
    >>> double(1)
    2
    """
    if output_interval < 1:
        raise ValueError(f"output_interval is {output_interval}: use 1 to print after every call")
    for column in columns:
        value_of(column)

    def decorate(func: _Function) -> _Function:
        if not enable:
            return func
        profiler = LineProfiler(func)
        calls = 0

        @functools.wraps(func)
        def profiled(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            # All profilers profile the GPU that set_target_gpu has chosen.
            profiler._target_gpu = _target_gpu
            with profiler:
                result = func(*arguments, **named)
            calls += 1
            if calls % output_interval == 0:
                profiler.print_stats(func, columns)
                profiler.clear()
            return result

        return profiled  # type: ignore[return-value]

    return decorate
