"""What goes wrong while a feeder reads: which sample it was."""

from __future__ import annotations

from typing import Any


class NotEnoughGPURam(MemoryError):
    """No batch fits on the GPU. Says what would: a smaller network, or how much memory.

    >>> import memlab
    >>> issubclass(memlab.NotEnoughGPURam, MemoryError)
    True
    """


class NotEnoughCPURam(MemoryError):
    """No batch can be fed within `cpu_memory_limit`. Says how much would be enough.

    >>> import memlab
    >>> try:
    ...     memlab.Config(memlab.KiB(64), None, 10, (3, 64, 64), (1,), None, batch_size=8)
    ... except memlab.NotEnoughCPURam as error:
    ...     print(error)
    cpu_memory_limit=64.0 KiB: feeding batches of 1 needs 456 KiB (two batches, and one sample while it is read)
    """


class SampleError(RuntimeError):
    """A sample could not be read: `sample` is its identity, ``__cause__`` the reader's own exception.

    The feeder stays usable, and nothing is lost: what came before was delivered, and the next ``next()`` reads the batch of
    this sample once more.

    >>> import memlab
    >>> def read(name):
    ...     yield open(f"/nonexistent/{name}").read()
    >>> config = memlab.Config("1MiB", None, 1, (4,), (1,), None, batch_size=1)
    >>> with memlab.Feeder(config, ["cat.png"], ["cat.png"], read, read) as feeder:
    ...     try:
    ...         batches = list(feeder)
    ...     except memlab.SampleError as error:
    ...         print(error.sample, error.index, error.side, type(error.__cause__).__name__)
    cat.png 0 input FileNotFoundError
    """

    def __init__(self, message: str, sample: Any, index: int, side: str) -> None:
        super().__init__(message, sample, index, side)
        self.sample: Any = sample
        """The identity, as it is in `input_list` or `output_list`."""
        self.index: int = index
        """Where it is in that list."""
        self.side: str = side
        """``"input"`` or ``"output"``."""

    def __str__(self) -> str:
        return str(self.args[0])


class WorkerDied(RuntimeError):
    """A worker process ended while it read: killed, for example for its memory, or crashed. The next ``next()`` starts
    another one, which reads the same samples.
    """
