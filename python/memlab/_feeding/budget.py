"""The division of a host memory limit between slots, which hold one batch each, and the memory of readers."""

from __future__ import annotations

import threading

from memlab._feeding.errors import NotEnoughCPURam
from memlab._feeding.layout import BatchLayout
from memlab._feeding.sample_form import SampleForm
from memlab._paging.sizes import readable

# One slot is filled while the batch in the other is computed on, or copied to the device.
FEWEST_SLOTS = 2

# Memory of a reader beside samples: the stack of its thread and the C library's tables.
_READER_BYTES = 64 << 10


def reader_bytes(sample_bytes: int) -> int:
    """Memory of a thread or process that reads samples of this size.

    The C library keeps about the size of the last sample, since its threshold for returning memory grows with freed sizes.
    It does not always reuse that memory for the next sample.
    """
    return 2 * sample_bytes + _READER_BYTES


class HostBudget:
    """The slots and readers that fit into `limit` bytes.

    Assumes that reading a sample takes the size of one side in all its variations. `ReadingRoom` corrects that after the
    first sample.

    >>> budget = HostBudget(1 << 20, SampleForm((1024,), "uint8"), SampleForm((), "int64"), one_read_count=2)
    >>> budget.row_bytes, budget.read_bytes, budget.allowed_rows, budget.largest_batch
    (1032, 69632, 948, 472)
    """

    def __init__(self, limit: int, inputs: SampleForm, outputs: SampleForm, one_read_count: int) -> None:
        self.limit = limit
        self.inputs = inputs
        self.outputs = outputs
        self.one_read_count = one_read_count
        self.row_bytes = inputs.nbytes + outputs.nbytes
        self.read_bytes = reader_bytes(one_read_count * max(inputs.nbytes, outputs.nbytes))

    def layout(self, batch_size: int) -> BatchLayout:
        return BatchLayout(self.inputs, self.outputs, batch_size)

    def needed(self, batch_size: int) -> int:
        """Minimum bytes for batches of this size: two slots and one reader."""
        return FEWEST_SLOTS * self.layout(batch_size).nbytes + self.read_bytes

    @property
    def allowed_rows(self) -> int:
        """Number of samples that fit beside one reader."""
        return max(self.limit - self.read_bytes, 0) // max(self.row_bytes, 1)

    @property
    def largest_batch(self) -> int:
        """The largest multiple of `one_read_count` that can be fed; 0 if none can."""
        most = max(self.limit - self.read_bytes, 0) // (FEWEST_SLOTS * max(self.row_bytes, 1))
        batch = most - most % self.one_read_count
        while batch and self.needed(batch) > self.limit:  # A slot is whole pages.
            batch -= self.one_read_count
        return batch

    def readers(self, batch_size: int, workers: int) -> int:
        """Number of workers that can read at a time; 1 at least."""
        room = self.limit - FEWEST_SLOTS * self.layout(batch_size).nbytes
        return max(1, min(workers, room // self.read_bytes))

    def slots(self, batch_size: int, workers: int, most: int) -> int:
        """Number of slots beside the readers, `most` at most."""
        room = self.limit - self.readers(batch_size, workers) * self.read_bytes
        return max(FEWEST_SLOTS, min(most, room // self.layout(batch_size).nbytes))


class ReadingRoom:
    """Admits readers as long as their samples fit into `nbytes`.

    The size of a sample is measured: the first reader is alone until it has ended.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._largest_read = 0
        self._taken = 0
        self._condition = threading.Condition()

    def enter(self) -> int:
        """Waits for room for one more read, and returns the bytes reserved for it."""
        with self._condition:
            while self._taken and self._taken + (self._largest_read or self.nbytes) > self.nbytes:
                self._condition.wait()
            taken = self._largest_read or self.nbytes
            self._taken += taken
            return taken

    def leave(self, taken: int, sample_bytes: int) -> None:
        """Releases the bytes that `enter` reserved, and records the size of a sample; 0 if reading failed.

        Raises:
            NotEnoughCPURam: a single read exceeds the limit.
        """
        with self._condition:
            self._taken -= taken
            needed = reader_bytes(sample_bytes) if sample_bytes else 0
            self._largest_read = max(self._largest_read, needed)
            self._condition.notify_all()
        if needed > self.nbytes:
            raise NotEnoughCPURam(
                f"reading a sample of {readable(sample_bytes)} needs {readable(needed)}, but cpu_memory_limit leaves "
                f"{readable(self.nbytes)} beside the batches: read it as the Config's dtype, yield one variation at a time, "
                f"or allow at least {readable(needed - self.nbytes)} more"
            )
