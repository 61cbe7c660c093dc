"""Errors of a feeder, with the sample that caused them."""

from __future__ import annotations

from typing import Any


class NotEnoughGPURam(MemoryError):
    """No batch fits on the GPU. The message contains a remedy: a smaller network, or the memory that would be enough.

    >>> import memlab
    >>> issubclass(memlab.NotEnoughGPURam, MemoryError)
    True
    """


class NotEnoughCPURam(MemoryError):
    """No batch can be fed within `cpu_memory_limit`. The message contains the limit that would be enough.

    >>> import memlab
    >>> try:
    ...     memlab.Config(memlab.KiB(64), None, 10, (3, 64, 64), (1,), None, batch_size=8)
    ... except memlab.NotEnoughCPURam as error:
    ...     print(error)
    cpu_memory_limit=64.0 KiB: feeding batches of 1 needs 456 KiB (two batches, and one sample while it is read)
    """


class SampleError(RuntimeError):
    """A sample could not be read: `sample` is its identity, ``__cause__`` the reader's exception.

    The feeder stays usable, and no batch is lost: earlier batches were delivered, and the next ``next()`` reads the batch of
    this sample again.

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
        """The identity, as in `input_list` or `output_list`."""
        self.index: int = index
        """Its index in that list."""
        self.side: str = side
        """``"input"`` or ``"output"``."""

    def __str__(self) -> str:
        return str(self.args[0])


class WorkerDied(RuntimeError):
    """A worker process ended while it read: it was killed, for example by the out-of-memory killer, or crashed. The next
    ``next()`` starts another process, which reads the same samples.
    """
