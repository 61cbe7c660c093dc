"""``memlab.Courtesy``: frees the GPU for another program, and continues later.

courtesy = memlab.Courtesy()
for batch in loader:
    if somebody_needs_the_gpu():
        courtesy.yield_memory()
        wait_for_our_turn()
        courtesy.restore()
    train(batch)
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from memlab import _native
from memlab._tools.messages import warn_once

if TYPE_CHECKING:
    from memlab.compat._courtesy.result import Yielded

# Same limit as `memlab offload` and `memlab restore` have for the program's GPU work.
TIMEOUT_S = 60.0


class Courtesy:
    """Moves the GPU memory of this process to host memory and back.

    In a program started with ``memlab run --offload``, all memory moves, and comes back to the same addresses. From
    `yield_memory` to `restore`, every call that uses a GPU waits, in all threads. Meanwhile the program may do anything
    except compute on a GPU (wait, read and write files, use tensors on the CPU).

    In any other program, the storages of tensors move: parameters, gradients, optimizer states, and tensors that autograd
    saved for a graph that Python can reach. Views and tensors that share a storage still share it after `restore`, but their
    ``data_ptr()`` changes. Meanwhile the program may use the GPU, but none of the tensors that it had before.

    Moved memory belongs to the process: any `Courtesy` restores memory that another has yielded.

    Args:
        timeout_s: seconds to wait for the program's GPU work to end. (Without ``--offload``, the wait has no limit.)

    Without CUDA nothing moves, and a line on standard error reports that.

    >>> import memlab
    >>> courtesy = memlab.Courtesy()
    >>> yielded = courtesy.yield_memory()
    >>> yielded.stayed_bytes
    0
    >>> courtesy.restore() == yielded.moved
    True
    >>> with courtesy:
    ...     pass  # what others do with the GPU meanwhile
    """

    def __init__(self, *, timeout_s: float = TIMEOUT_S) -> None:
        if not timeout_s >= 0:
            raise ValueError(f"timeout_s is a number of seconds, and was given {timeout_s!r}")
        self.timeout_s = timeout_s
        self._entered: list[bool] = []  # For each `with` that was entered: True if it moved memory.

    def yield_memory(self) -> Yielded:
        """Moves GPU memory to host memory, and returns the memory that PyTorch caches to the driver.

        Waits for all work on the GPU first. A second call moves the memory allocated since the first. Memory that could not
        be moved is in the result, and on standard error.

        Returns: the bytes that were moved, and the memory that stayed on the GPU.

        Raises:
            RuntimeError: memory cannot be moved now; the text has the reason. Nothing has moved.
            MemoryError: the host has too little memory. Nothing has moved.

        >>> import memlab
        >>> memlab.Courtesy().yield_memory().stayed_bytes
        0
        >>> memlab.Courtesy().restore() >= 0
        True
        """
        from memlab.compat._courtesy.result import Yielded

        if not _uses_gpu():
            return Yielded()
        import torch

        from memlab.compat._courtesy.in_place import yield_in_place
        from memlab.compat._courtesy.native import move_status

        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("a CUDA graph is being captured: yield memory before or after the capture")
        status = move_status()
        if not status.get("enabled"):
            yielded = yield_in_place()
            if yielded.stayed:
                sys.stderr.write(f"memlab: {yielded}\n")
            return yielded
        return _offload(status, self.timeout_s)

    def restore(self, *, free_host: bool = False) -> int:
        """Restores all moved memory that is still in use. Does nothing if no memory was moved.

        Args:
            free_host: also return the pinned host memory of the native offload to the system. By default it is kept, for a
                faster `yield_memory` the next time.

        Returns: the bytes that were restored.

        Raises: RuntimeError (also torch.cuda.OutOfMemoryError) if the GPU has no room. Everything stays in host memory, and
            `restore` can be called again.

        >>> import memlab
        >>> memlab.Courtesy().restore()
        0
        """
        if "torch" not in sys.modules:
            return 0
        from memlab.compat._courtesy import host_copies
        from memlab.compat._courtesy.native import move_status

        restored = 0
        before = move_status()
        if before.get("host_bytes") or before.get("state") == "offloaded":
            _native.restore(self.timeout_s, free_host)
            restored = int(before["host_bytes"])
        return restored + (host_copies.bring_back() if host_copies.is_away() else 0)

    def __enter__(self) -> Courtesy:
        self._entered.append(self.yield_memory().moved > 0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A `with` inside another has moved nothing, and leaves the memory to the outer one.
        if self._entered.pop():
            self.restore()


def _uses_gpu() -> bool:
    """Returns True if the program has used a GPU through PyTorch. If it cannot, prints a line on standard error."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        why_not = "this program has not imported torch" if torch is None else "PyTorch finds no CUDA device"
        warn_once(f"{why_not}: there is no GPU memory to yield")
        return False
    return bool(torch.cuda.is_initialized())


def _offload(status: dict[str, Any], timeout_s: float) -> Yielded:
    """Moves all memory with the native offload. Addresses stay the same."""
    import torch

    from memlab.compat._courtesy.native import move_status
    from memlab.compat._courtesy.result import Yielded

    if status["state"] == "offloaded":
        return Yielded(offloaded=True)
    # Before the offload: afterwards, returning memory would wait for the restore.
    torch.cuda.empty_cache()
    status = move_status()
    if not status["device_bytes"]:
        return Yielded()
    _native.offload(timeout_s)
    after = move_status()
    return Yielded(after["host_bytes"] - status["host_bytes"], offloaded=True)
