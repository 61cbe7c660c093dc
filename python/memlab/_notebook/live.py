"""Figures of a running cell."""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from memlab._notebook.cell_memory import CellMemory
from memlab._notebook.html_style import size

_PERIOD = 0.5  # seconds

_WIDGET = """
export default {
  render({ model, el }) {
    const show = () => { el.innerHTML = model.get("html"); };
    model.on("change:html", show);
    show();
  },
};
"""


class _View(Protocol):
    def show(self, memory: CellMemory) -> None:
        """Shows the figures so far."""

    def finish(self, memory: CellMemory) -> None:
        """Shows the figures of the whole cell, which stay."""


class Live:
    """Shows the result of `look` twice a second, from a thread, until the block ends, and then once more."""

    def __init__(self, shell: Any, name: str, look: Callable[[], CellMemory]) -> None:
        self._look = look
        self._view: _View = _kernel_view(name) if hasattr(shell, "kernel") else _Terminal()
        self._over = threading.Event()
        # A thread's messages are attributed to the cell named by its context.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._follow,), name="memlab-live", daemon=True)

    def _follow(self) -> None:
        while not self._over.wait(_PERIOD):
            self._view.show(self._look())

    def __enter__(self) -> Live:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def finish(self, memory: CellMemory) -> None:
        """Replaces the live figures with the final ones."""
        self._view.finish(memory)


def _kernel_view(name: str) -> _View:
    try:
        return _Widget(name)
    except ImportError:
        return _Output(name)


class _Output:
    """A replaceable output of the cell, for front ends without widgets."""

    def __init__(self, name: str) -> None:
        from IPython.display import HTML, display

        self._handle = display(HTML(f"{name} is running"), display_id=True)

    def show(self, memory: CellMemory) -> None:
        self._handle.update(memory)

    def finish(self, memory: CellMemory) -> None:
        self._handle.update(memory)


class _Widget:
    """A widget that follows the cell. At the end it is replaced by plain HTML, which a saved notebook keeps."""

    def __init__(self, name: str) -> None:
        import anywidget
        import traitlets
        from IPython.display import display

        class LiveMemory(anywidget.AnyWidget):  # type: ignore[misc]
            _esm = _WIDGET
            html = traitlets.Unicode(f"{name} is running").tag(sync=True)

            def __repr__(self) -> str:
                return f"memlab follows {name}"

        self._widget = LiveMemory()
        self._handle = display(self._widget, display_id=True)

    def show(self, memory: CellMemory) -> None:
        self._widget.html = memory._repr_html_()

    def finish(self, memory: CellMemory) -> None:
        self._handle.update(memory)
        self._widget.close()


class _Terminal:
    """A line on stderr that is overwritten."""

    def show(self, memory: CellMemory) -> None:
        if sys.stderr.isatty():
            held, peak = size(memory.end), size(memory.peak)
            sys.stderr.write(f"\r\x1b[K{memory.name}: {held} allocated, peak {peak}, {memory.seconds:.0f} s")
            sys.stderr.flush()

    def finish(self, memory: CellMemory) -> None:
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
        sys.stdout.write(f"{memory!r}\n")
