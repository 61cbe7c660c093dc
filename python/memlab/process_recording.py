"""`memlab.start` and `memlab.stop`: record this process from within.

Programs started with `memlab run` or `LD_PRELOAD` are recorded already. In others, such as notebooks, the first use of a
tool calls `start`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from memlab import _native
from memlab._tools.messages import warn_once

_PACKAGE = Path(__file__).resolve().parent
_IN_MEMORY = ":memory:"

# True if this module loaded the library: then `stop` completes the trace file.
_loaded_here = False
_why_not: str | None = None


def start(output: str | os.PathLike[str] | None = None, offload: bool = False) -> bool:
    """Records this process from now on, if it is not recorded already. Returns True if it is recorded.

    Loads libmemlab.so into the running program and installs its hooks; PyTorch reports the memory that it allocated earlier.
    Call it early: libraries keep calling the CUDA functions that they looked up before, without hooks.

    output: the file of the trace, which `memlab view` follows and `memlab report` summarizes; ``%p`` is the process id,
        ``%r`` the rank, ``%n`` the program's name. None: no file; the tools of this package read from memory.
    offload: whether memory must be movable (`memlab.Courtesy`, `memlab offload`). This requires a program started with
        ``memlab run --offload``; otherwise a warning is printed, and the program is recorded without.

    Raises RuntimeError if `output` cannot be written, or if ``memlab run`` already records to another file. Without CUDA it
    prints a line and returns False.

    >>> import memlab
    >>> memlab.start() in (True, False)
    True
    """
    global _loaded_here, _why_not
    wanted = None if output is None else os.fspath(output)
    if not _native.library_found():
        _why_not = _reason_not_to_load()
        if _why_not is None:
            _why_not = _load(wanted)
            _loaded_here = _why_not is None
        if _why_not is not None:
            warn_once(_why_not)
            return False
    elif wanted is not None:
        if not _loaded_here:
            raise RuntimeError(f"the program was started under memlab and is recorded to {trace_path()}: leave out output=")
        _native.set_output(wanted)
    if os.environ.get("MEMLAB") == "0":
        _why_not = "memlab is switched off (MEMLAB=0): the tools return empty results"
        warn_once(_why_not)
        return False
    if offload and not can_offload():
        warn_once("memory cannot be moved: the program was not started with `memlab run --offload`")
    _native.books_start()
    error = _native.books_error()
    if error is not None:
        _why_not = error
        warn_once(error)
        return False
    _why_not = None
    return True


def stop() -> None:
    """Ends the recording that `start` began: completes the trace file, and clears the data of the tools.

    The hooks stay and record to memory, so that `start` can be called again. A trace that ``memlab run`` writes goes on.

    >>> import memlab
    >>> memlab.stop()
    """
    _native.books_stop()
    path = trace_path()
    if _loaded_here and path is not None and not path.startswith("/proc/"):
        _native.set_output(None)


def trace_path() -> str | None:
    """The file of the recording; None: no recording yet. A path in /proc: memory."""
    status = status_of_recording()
    return None if status is None else str(status["trace"])


def status_of_recording() -> dict[str, Any] | None:
    """The status of this process, as for `memlab ps`; None: no recording yet."""
    text = _native.recording_status() if _native.library_found() else None
    return None if text is None else json.loads(text)


def can_offload() -> bool:
    """True if the process was started with movable memory."""
    status = status_of_recording()
    if status is None:
        return os.environ.get("MEMLAB_OFFLOAD", "0") not in ("", "0") and not _loaded_here and _native.library_found()
    return bool(status["move"]["enabled"])


def ensure_started() -> bool:
    """Starts the live books on the first use of a tool. Returns True if they are kept."""
    if _native.books_active():
        return True
    if _why_not is not None and not _native.library_found():
        return False
    return start()


def why_not() -> str | None:
    """The reason why nothing is recorded; None: it is, or no tool was used. PyTorch may have been imported since the
    start."""
    return _why_not or (_reason_not_to_load() if _native.books_active() else None)


def _reason_not_to_load() -> str | None:
    """The reason why the tools return nothing, if this process has nothing to record."""
    if sys.platform != "linux":
        return "memlab records on Linux only: the tools return empty results"
    torch: Any = sys.modules.get("torch")
    cuda: Any = getattr(torch, "cuda", None)
    if not hasattr(cuda, "is_initialized"):  # Not imported, or being imported.
        return None
    if not torch.backends.cuda.is_built():
        return "this PyTorch is built without CUDA: the tools return empty results"
    if not cuda.is_initialized():
        # `torch.cuda.is_available()` would initialise CUDA, which no forked child could use afterwards.
        count = getattr(cuda, "_device_count_nvml", lambda: -1)()
        if count == 0 or not _native.driver_found():
            return "there is no CUDA device: the tools return empty results"
    return None


def _load(output: str | None) -> str | None:
    """Loads the library with the output of the recording. Returns the error, or None."""
    path = library_path()
    if path is None:
        return f"libmemlab.so is missing in {_PACKAGE / 'bin'}: install memlab again, or run `make` in a source tree"
    # The library reads its settings when it is loaded, as with LD_PRELOAD.
    before = os.environ.get("MEMLAB_OUTPUT")
    os.environ["MEMLAB_OUTPUT"] = output or before or _IN_MEMORY
    try:
        _native.load_library(str(path))
    except OSError as error:
        return f"{path} cannot be loaded: {error}"
    finally:
        if before is None:
            del os.environ["MEMLAB_OUTPUT"]
        else:
            os.environ["MEMLAB_OUTPUT"] = before
    return None


def library_path() -> Path | None:
    """The path of libmemlab.so: in the package, or beside it in a source tree; None: it is missing."""
    candidates = [_PACKAGE / "bin" / "libmemlab.so", _PACKAGE.parent.parent / "target" / "release" / "libmemlab.so"]
    return next((path for path in candidates if path.exists()), None)
