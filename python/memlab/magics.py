"""`%load_ext memlab`: the magics `%mlrun`, `%%mlrun`, `%memlab` and `%%memlab`.

`%mlrun` has the options of pytorch_memlab's.
"""

# IPython has no types for its decorators.
# mypy: allow-untyped-decorators

from __future__ import annotations

import re
import sys
from contextlib import nullcontext
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, needs_local_scope, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from memlab import _native
from memlab._notebook.cell_code import CellCode
from memlab._notebook.cell_memory import CellMemory
from memlab._notebook.gpu_memory import GpuMemory
from memlab._notebook.live import Live
from memlab._notebook.profiled_names import ProfiledNames
from memlab._tools import devices
from memlab.compat._lines.columns import DEFAULT_COLUMNS, value_of
from memlab.compat.line_profiler import LineProfiler
from memlab.process_recording import ensure_started, why_not
from memlab.watching import watch

_WORD = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|\S)+)""")


def load_ipython_extension(shell: Any) -> None:
    """Registers the magics and starts the recording. Called by `%load_ext memlab`."""
    shell.register_magics(MemlabMagics)
    # Started here rather than by the first magic: earlier allocations have no lines.
    ensure_started()


def unload_ipython_extension(shell: Any) -> None:
    """Removes the magics. Called by `%unload_ext memlab`. The recording goes on; `memlab.stop` ends it."""
    for kind in ("line", "cell"):
        for name in ("mlrun", "memlab"):
            shell.magics_manager.magics[kind].pop(name, None)


@magics_class
class MemlabMagics(Magics):  # type: ignore[misc]
    """The magics of memlab."""

    @magic_arguments()
    @argument("-f", "--function", metavar="FUNC", action="append", default=[], help="profile this function; may be repeated")
    @argument("-c", "--column", metavar="COL", action="append", default=[], help="show this column too; may be repeated")
    @argument("-D", "--no_default_columns", action="store_true", help="show only the columns of -c")
    @argument("-r", "--return-profiler", action="store_true", help="return the LineProfiler instead of showing its figures")
    @argument("-g", "--gpu", metavar="GPU", default=0, type=int, help="profile this GPU; default: 0")
    @argument("-q", "--quiet", action="store_true", help="show nothing")
    @argument("-T", "--dump-profile", metavar="FILE", help="write the figures to this file, as text")
    @argument("statement", nargs="*", help="the statement to run; the rest of the line, unchanged")
    @needs_local_scope
    @no_var_expand
    @line_cell_magic
    def mlrun(self, line: str = "", cell: str | None = None, local_ns: dict[str, Any] | None = None) -> LineProfiler | None:
        """Runs a statement, or the cell, and shows the GPU memory of functions by line.

        Functions may be defined in the cell itself::

            %%mlrun -f func
            def func():
                ...
            func()

        A column is a key of `torch.cuda.memory_stats()` such as `active_bytes.all.peak`, or one of memlab's such as
        `line.allocated`. An unknown column lists all valid ones. With -r, the magic returns the profiler:
        ``prof = %mlrun -r -f f f()``.
        """
        __tracebackhide__ = True
        options, statement = _split(line)
        arguments = _parsed(self.mlrun, self.shell, options)
        columns = [*(() if arguments.no_default_columns else DEFAULT_COLUMNS), *arguments.column]
        if not columns:
            raise UsageError("-D without -c leaves no column: add one with -c")
        _check_columns(columns)
        if cell is not None and statement:
            raise UsageError(f"{statement!r} is not an option of %%mlrun, which runs the cell")
        if cell is None and not statement:
            raise UsageError("nothing to run: %mlrun -f FUNC STATEMENT")
        device = _gpu(arguments.gpu)
        code = CellCode(self.shell, cell if cell is not None else statement, "mlrun", display=cell is not None)
        profiler = LineProfiler(target_gpu=device)
        names = ProfiledNames(arguments.function, profiler, self.shell.user_ns, local_ns)
        names.require(code.source)
        try:
            with profiler:
                code.run(local_ns, after_statement=names.add_found)
            names.require_all()
        finally:
            # Also after a statement that failed.
            if arguments.dump_profile is not None:
                _write(profiler, arguments.dump_profile, columns, arguments.quiet)
            if not arguments.quiet and not arguments.return_profiler:
                reason = why_not() if arguments.function else "no function is profiled: name one with -f"
                if reason is None:
                    profiler.display(columns=columns)
                else:
                    sys.stdout.write(f"no data: {reason}\n")
        return profiler if arguments.return_profiler else None

    @magic_arguments()
    @argument("-g", "--gpu", metavar="GPU", type=int, help="show this GPU; default: all in use; for a cell, the current one")
    @argument("-n", "--rows", metavar="N", type=int, default=10, help="lines and layers to show; default: 10")
    @argument("-o", "--output", metavar="NAME", help="keep the figures in this variable")
    @argument("-q", "--quiet", action="store_true", help="show nothing")
    @argument("-l", "--live", action="store_true", help="show the figures of a cell while it runs")
    @no_var_expand
    @line_cell_magic
    def memlab(self, line: str = "", cell: str | None = None) -> None:
        """Shows the memory of the GPU now (`%memlab`), or the allocated, kept and peak memory of the cell (`%%memlab`)."""
        __tracebackhide__ = True
        arguments = _parsed(self.memlab, self.shell, line)
        name = arguments.output
        if name is not None and not name.isidentifier():
            raise UsageError(f"{name!r} is not a variable name")
        device = None if arguments.gpu is None else _gpu(arguments.gpu)
        if cell is not None:
            self._watched(cell, device, arguments)
            return
        ensure_started()
        indexes = [device] if device is not None else sorted({*_native.devices(), devices.current()})
        memories = [GpuMemory(index, arguments.rows) for index in indexes]
        if name is not None:
            self.shell.user_ns[name] = memories[0] if len(memories) == 1 else memories
        if not arguments.quiet:
            display(*memories)

    def _watched(self, cell: str, device: int | None, arguments: Any) -> None:
        """Runs a cell and shows its figures, even if it fails."""
        __tracebackhide__ = True
        code = CellCode(self.shell, cell, "%%memlab")
        watched = watch(device)
        error: str | None = None
        live: Live | None = None
        try:
            with watched:
                live = Live(self.shell, code.name, lambda: CellMemory(code.name, watched, False)) if arguments.live else None
                with live or nullcontext():
                    code.run()
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            _native.ask_for_tags()
            memory = CellMemory(code.name, watched, error=error)
            if arguments.output is not None:
                self.shell.user_ns[arguments.output] = memory
            if live is not None:
                live.finish(memory)
            elif not arguments.quiet:
                display(memory)


def _split(line: str) -> tuple[str, str]:
    """The options at the beginning of a line, and the statement after them, unchanged."""
    at = 0
    while match := _WORD.match(line, at):
        word = match.group(1)
        if not re.match(r"-[A-Za-z-]", word):
            break
        at = match.end()
        if word == "--":
            return line[: match.start()], line[at:].strip()
        if _takes_next_word(word) and (value := _WORD.match(line, at)):
            at = value.end()
    return line[:at], line[at:].strip()


def _takes_next_word(option: str) -> bool:
    """True if an option's value is the word after it: `-f func`, `-rf func`, `--gpu 1`; but not `-ffunc`, `--gpu=1`."""
    if option.startswith("--"):
        return any(name.startswith(option) for name in ("--function", "--column", "--gpu", "--dump-profile"))
    letters = option[1:].lstrip("Drq")
    return len(letters) == 1 and letters in "fcgT"


def _parsed(magic: Any, shell: Any, options: str) -> Any:
    arguments = parse_argstring(magic, shell.var_expand(options))
    for name, value in vars(arguments).items():
        if isinstance(value, str):
            setattr(arguments, name, value.strip("\"'"))
    return arguments


def _gpu(index: int) -> int:
    torch: Any = sys.modules.get("torch")
    count = torch.cuda.device_count() if torch is not None else 0
    if index < 0 or 0 < count <= index:
        raise UsageError(f"no GPU {index}: this machine has {count}")
    return index


def _check_columns(columns: list[str]) -> None:
    for column in columns:
        try:
            value_of(column)
        except ValueError as error:
            raise UsageError(str(error)) from None


def _write(profiler: LineProfiler, path: str, columns: list[str], quiet: bool) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            profiler.print_stats(columns=columns, stream=file)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None
    if not quiet:
        sys.stdout.write(f"the figures are in {path}\n")
