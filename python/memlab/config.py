"""``memlab.Config``: the number of samples that fit into the GPU, and into host memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from memlab._feeding.batch_size import Planner, Training, largest_fitting_batch
from memlab._feeding.budget import HostBudget
from memlab._feeding.errors import NotEnoughCPURam, NotEnoughGPURam
from memlab._feeding.sample_form import SampleForm
from memlab._paging.sizes import bytes_of, readable

__all__ = ["Config", "GiB", "KiB", "MiB", "NotEnoughCPURam", "NotEnoughGPURam"]


def KiB(count: float) -> int:
    """Converts binary kilobytes to bytes.

    >>> import memlab
    >>> memlab.KiB(4)
    4096
    """
    return _bytes(count, 10)


def MiB(count: float) -> int:
    """Converts binary megabytes to bytes.

    >>> import memlab
    >>> memlab.MiB(0.5)
    524288
    """
    return _bytes(count, 20)


def GiB(count: float) -> int:
    """Converts binary gigabytes to bytes.

    Raises:
        ValueError: `count` is negative, or no number.

    >>> import memlab
    >>> memlab.GiB(1.5)
    1610612736
    """
    return _bytes(count, 30)


def _bytes(count: float, power: int) -> int:
    if not 0 <= count < math.inf:
        raise ValueError(f"{count}: must be 0 or more")
    return round(count * (1 << power))


class Config:
    """Describes samples and memory for a `memlab.Feeder`, and decides the batch size.

    Sizes are bytes (``memlab.GiB(1.5)``) or texts (``"1.5GiB"``).

    Args:
        cpu_memory_limit: maximum host memory of the feeder: batches, and samples while they are read.
        gpu_memory_limit: maximum GPU memory of the training; None for all memory of `card`.
        total_sample_count: number of identities.
        input_shape, output_shape: shapes of one sample, without the batch dimension.
        network: the module that is trained; not needed if `batch_size` or `planner` is given.
        input_dtype, output_dtype: types of NumPy or PyTorch. Samples are converted to them when they are read.
        one_read_count: variations that the readers yield for one identity.
        preferred_batch_size: an upper bound. The batch that fits may be smaller: see `limited_by` and `accumulation_steps`.
        optimizer, loss, amp: as for `memlab.inspect`, which plans the batch size.
        card: the card to plan for, such as ``"h100"``, if no GPU memory limit is given.
        allocator: settings of PyTorch's allocator, as in ``PYTORCH_ALLOC_CONF``.
        workers: number of samples that the feeder reads at a time; 0 reads in the loop itself.
        batch_size: rows in a batch, without a plan. The limit of host memory may reduce it.
        planner: an object with `largest_batch(card_bytes, *, allocator)`, used instead of `memlab.inspect`.

    Raises:
        NotEnoughGPURam: `one_read_count` rows do not fit on the GPU; the message contains the memory that would be enough.
        NotEnoughCPURam: they cannot be fed within `cpu_memory_limit`; the message contains the limit that would be enough.
        TypeError, ValueError: an argument is wrong.

    >>> import memlab, numpy
    >>> config = memlab.Config(
    ...     cpu_memory_limit=memlab.MiB(64), gpu_memory_limit=None, total_sample_count=1000,
    ...     input_shape=(3, 224, 224), output_shape=(), network=None,
    ...     input_dtype=numpy.uint8, output_dtype=numpy.int64, one_read_count=2, batch_size=15)
    >>> config.batch_size, config.batch_count, config.allowed_sample_count
    (14, 143, 441)
    """

    def __init__(
        self,
        cpu_memory_limit: float | str,
        gpu_memory_limit: float | str | None,
        total_sample_count: int,
        input_shape: Sequence[int] | int,
        output_shape: Sequence[int] | int,
        network: Any,
        input_dtype: Any = np.float64,
        output_dtype: Any = np.float64,
        one_read_count: int = 1,
        preferred_batch_size: int | None = None,
        *,
        optimizer: Any = "adamw",
        loss: Any = None,
        amp: Any = None,
        card: str | None = None,
        allocator: str | None = None,
        workers: int = 0,
        batch_size: int | None = None,
        planner: Planner | None = None,
    ) -> None:
        self.cpu_memory_limit: int = _size("cpu_memory_limit", cpu_memory_limit)
        self.gpu_memory_limit: int | None = None
        if gpu_memory_limit is not None:
            self.gpu_memory_limit = _size("gpu_memory_limit", gpu_memory_limit)
        self.total_sample_count: int = _count("total_sample_count", total_sample_count, 0)
        self.one_read_count: int = _count("one_read_count", one_read_count, 1)
        self.workers: int = _count("workers", workers, 0)
        self.inputs = SampleForm(input_shape, input_dtype)
        self.outputs = SampleForm(output_shape, output_dtype)
        self.preferred_batch_size = preferred_batch_size
        for name, bound in (("preferred_batch_size", preferred_batch_size), ("batch_size", batch_size)):
            if bound is not None and _count(name, bound, 1) < one_read_count:
                raise ValueError(
                    f"{name}={bound} is below one_read_count={one_read_count}: a batch holds all variations of a sample"
                )
        bounds = {"preferred_batch_size": preferred_batch_size, "batch_size": batch_size}
        if batch_size is None:
            limit = card if self.gpu_memory_limit is None else self.gpu_memory_limit
            if limit is None:
                raise ValueError("pass gpu_memory_limit or card to plan the batch size, or batch_size")
            if planner is None:
                planner = Training(network, self.inputs, self.outputs, optimizer, loss, amp).planner()
            bounds["gpu_memory_limit"] = largest_fitting_batch(planner, limit, allocator, one_read_count)
        self.budget = HostBudget(self.cpu_memory_limit, self.inputs, self.outputs, one_read_count)
        bounds["cpu_memory_limit"] = self._fed_batch()
        self._bounds = {name: bound for name, bound in bounds.items() if bound is not None}

    @property
    def batch_size(self) -> int:
        """Rows in a batch: the smallest of the bounds, rounded down to a multiple of `one_read_count`."""
        least = min(self._bounds.values())
        return least - least % self.one_read_count

    @property
    def limited_by(self) -> str:
        """The argument that limits the batch size, such as ``"gpu_memory_limit"``.

        >>> import memlab
        >>> memlab.Config("1MiB", None, 8, (1024,), (1,), None, batch_size=512).limited_by
        'cpu_memory_limit'
        """
        return min(self._bounds, key=lambda name: self._bounds[name])

    @property
    def batch_count(self) -> int:
        """Batches in an epoch, including a short last one."""
        return -(-self.total_sample_count * self.one_read_count // self.batch_size)

    @property
    def allowed_sample_count(self) -> int:
        """Number of samples, inputs and outputs, that fit into `cpu_memory_limit` beside one that is being read."""
        return self.budget.allowed_rows

    @property
    def accumulation_steps(self) -> int:
        """Batches per optimizer step, so that a step sees `preferred_batch_size` rows as nearly as possible.

        >>> import memlab
        >>> memlab.Config("1MiB", None, 8, (1024,), (1,), None, preferred_batch_size=128, batch_size=32).accumulation_steps
        4
        """
        return max(1, round((self.preferred_batch_size or 0) / self.batch_size))

    def _fed_batch(self) -> int:
        batch = self.budget.largest_batch
        if batch == 0:
            raise NotEnoughCPURam(
                f"cpu_memory_limit={readable(self.cpu_memory_limit)}: feeding batches of {self.one_read_count} needs "
                f"{readable(self.budget.needed(self.one_read_count))} (two batches, and one sample while it is read)"
            )
        return batch

    def __repr__(self) -> str:
        return (
            f"<memlab.Config: {self.total_sample_count} samples in {self.batch_count} batches of {self.batch_size} "
            f"({self.limited_by})>"
        )


def _size(name: str, size: float | str) -> int:
    if isinstance(size, str):
        return bytes_of(size)
    if isinstance(size, bool) or not isinstance(size, (int, float)):
        raise TypeError(f'{name}={size!r}: must be a number of bytes, or a size such as "2GiB"')
    if not 0 <= size < math.inf:
        raise ValueError(f"{name}={size!r}: must be 0 or more")
    return int(size)


def _count(name: str, count: int, least: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"{name}={count!r}: must be an int")
    if count < least:
        raise ValueError(f"{name}={count}: must be {least} or more")
    return count
