"""State of libmemlab for moving the memory of this process."""

from __future__ import annotations

from typing import Any

from memlab import _native
from memlab.process_recording import status_of_recording


def move_status() -> dict[str, Any]:
    """Returns the state that `memlab ps` shows (`move` in docs/control.md); empty if nothing is recorded."""
    status = status_of_recording() if _native.library_found() else None
    return {} if status is None else dict(status["move"])
