"""The offload of libmemlab, for the process that it is loaded into: `interpose/include/memlab.h`."""

from __future__ import annotations

import ctypes
import json
from typing import Any

_ERROR_BYTES = 4096


def _library() -> ctypes.CDLL | None:
    """The program's own symbols, if libmemlab is among them."""
    program = ctypes.CDLL(None)
    return program if hasattr(program, "memlab_status") else None


def move_status() -> dict[str, Any]:
    """What the control socket says about moving memory; empty if libmemlab is not loaded, or records nothing yet."""
    library = _library()
    if library is None:
        return {}
    library.memlab_status.argtypes = (ctypes.c_char_p, ctypes.c_size_t)
    library.memlab_status.restype = ctypes.c_size_t
    size = 1 << 12
    while True:
        text = ctypes.create_string_buffer(size)
        needed = library.memlab_status(text, size)
        if needed <= size:
            break
        size = needed
    status: dict[str, Any] = json.loads(text.value)["move"] if needed else {}
    return status


def is_offloadable() -> bool:
    """Whether the process was started so that its memory can move (`memlab run --offload`)."""
    return bool(move_status().get("enabled"))


def offload(timeout_s: float) -> None:
    """Moves everything. The GIL is released meanwhile. Raises RuntimeError with libmemlab's reason; then nothing moved."""
    _call("memlab_offload", ctypes.c_double(timeout_s))


def restore(timeout_s: float, free_host: bool) -> None:
    """Brings everything back. Raises RuntimeError with libmemlab's reason; then everything is in host memory as it was."""
    _call("memlab_restore", ctypes.c_double(timeout_s), ctypes.c_int(free_host))


def _call(name: str, *arguments: Any) -> None:
    library = _library()
    if library is None:
        raise RuntimeError("libmemlab is not loaded")
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    if getattr(library, name)(*arguments, error, ctypes.c_size_t(_ERROR_BYTES)) != 0:
        raise RuntimeError(error.value.decode(errors="replace"))
