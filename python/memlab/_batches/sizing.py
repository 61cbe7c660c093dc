"""The number of samples in a piece of a batch: as many as fit, extrapolated from the memory of smaller pieces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol
from weakref import ref

import torch
from torch import nn

from memlab._batches.gradients import WideSums

# Share of the memory left free for fragmentation.
_SPARE = 0.08
# Maximum ratio of a piece to the largest measured one.
_BOLDNESS = 8
# Sizes within this ratio of a measured one count as measured.
_CLOSE = 1.25


class Sizing(Protocol):
    """Decides the size of the next piece."""

    def size(self, left: int) -> int:
        """The number of samples of the next piece. `left`: the samples that have not been computed."""

    def measured(self, size: int) -> AbstractContextManager[None]:
        """A context in which a piece of this size runs forward and backward."""

    def is_known(self, size: int) -> bool:
        """True if the memory of a piece of this size is known: not while pieces still grow."""

    def failed(self, size: int) -> None:
        """Records that a piece of this size ran out of memory."""

    def copies_ahead(self, sample_bytes: int) -> None:
        """Accounts for a prefetched piece beside each running piece, with these bytes per sample."""

    def note_outputs(self, sample_bytes: int) -> None:
        """Sets the bytes of a sample's outputs and their gradients."""

    def keep_outputs(self, samples: int) -> None:
        """Reserves memory for the outputs of `samples` beside each piece."""


class _DecidedSize:
    """A size without measurements."""

    @contextmanager
    def measured(self, size: int) -> Iterator[None]:
        yield

    def is_known(self, size: int) -> bool:
        return True

    def copies_ahead(self, sample_bytes: int) -> None:
        pass

    def note_outputs(self, sample_bytes: int) -> None:
        pass

    def keep_outputs(self, samples: int) -> None:
        pass


class FixedSize(_DecidedSize):
    """Pieces of the size that the caller has chosen, and a remainder."""

    def __init__(self, size: int) -> None:
        self._size = size

    def size(self, left: int) -> int:
        return min(self._size, left)

    def failed(self, size: int) -> None:
        self._size = max(size // 2, 1)


class EqualPieces(_DecidedSize):
    """The number of pieces that all ranks have agreed on, of sizes as equal as possible."""

    def __init__(self, samples: int, pieces: int) -> None:
        self._borders = [index * samples // pieces for index in range(1, pieces + 1)]

    def size(self, left: int) -> int:
        begin = self._borders[-1] - left
        return next(border for border in self._borders if border > begin) - begin

    def failed(self, size: int) -> None:
        pass


def room_on(device: torch.device, memory: int | None) -> int:
    """Bytes that may be allocated on a GPU now, with a reserve. `memory`: the limit of the process; None: all."""
    allocated = torch.cuda.memory_allocated(device)
    free, _ = torch.cuda.mem_get_info(device)
    room = free + torch.cuda.memory_reserved(device) - allocated
    if memory is not None:
        room = min(room, memory - allocated)
    return max(int(room * (1 - _SPARE)), 0)


def peak_allocated(device: torch.device) -> int | None:
    """Maximum of the allocated bytes since the peak was reset; None: the device is no GPU."""
    if device.type != "cuda":
        return None
    # The flat form of these statistics takes ten times as long.
    peak: int = torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["peak"]
    return peak


class MeasuredSize:
    """As many samples as fit. The first pieces are small, and measured: their memory grows linearly with their samples.

    Resets PyTorch's peak counters as long as pieces grow.
    """

    def __init__(self, model: nn.Module, device: torch.device, memory: int | None) -> None:
        # A weak reference: this object is kept as long as the model is.
        self._model = ref(model)
        self._device = device
        self._memory = memory
        # Peak bytes of a piece, without the memory allocated before it, by its size.
        self._taken: dict[int, int] = {}
        self._limit: int | None = None
        # Bytes per sample of the prefetched piece.
        self._prefetcher = 0
        # Output bytes per sample, and the number of samples whose outputs stay.
        self._output_bytes, self._kept = 0, 0

    def size(self, left: int) -> int:
        """Makes pieces as equal as possible, so that no small last piece leaves the GPU idle."""
        largest = max(self._largest(), 1)
        return -(-left // -(-left // largest)) if left > largest else left

    @property
    def largest_measured(self) -> int:
        """Samples of the largest measured piece; 0: no piece was measured."""
        return max(self._taken, default=0)

    def _largest(self) -> int:
        if len(self._taken) < 2:
            largest = 1 + len(self._taken)
        else:
            measured = sorted(self._taken.items())
            (least, least_bytes), (small, small_bytes), (large, large_bytes) = measured[0], *measured[-2:]
            # (The difference of two nearly equal sizes is mostly rounding.)
            slopes = (large_bytes - small_bytes) / (large - small), (large_bytes - least_bytes) / (large - least)
            sample_bytes = max(*slopes, 1) + self._prefetcher
            fitting = large + int((self._room() - large_bytes - large * self._prefetcher) / sample_bytes)
            largest = min(max(fitting, 1), large * _BOLDNESS)
        return largest if self._limit is None else min(largest, self._limit)

    def _room(self) -> int:
        """Bytes that a piece may take now."""
        outputs = self._kept * self._output_bytes
        return room_on(self._device, self._memory) - self._gradients_to_come() - outputs

    def _gradients_to_come(self) -> int:
        """Bytes of gradients, and of their sums in float32, that pieces will leave allocated."""
        model = self._model()
        parameters = [] if model is None else [one for one in model.parameters() if one.requires_grad]
        missing = sum(one.nbytes for one in parameters if one.grad is None)
        return missing + WideSums.bytes_for(parameters)

    @contextmanager
    def measured(self, size: int) -> Iterator[None]:
        if size <= max(self._taken, default=0):
            yield
            return
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        yield
        peak = torch.cuda.max_memory_allocated(self._device)
        # (The first piece leaves gradients allocated, not all of which existed at its peak.)
        self._taken[size] = peak - min(before, torch.cuda.memory_allocated(self._device))

    def is_known(self, size: int) -> bool:
        return size <= max(self._taken, default=0) * _CLOSE

    def failed(self, size: int) -> None:
        self._limit = max(size // 2, 1)

    def copies_ahead(self, sample_bytes: int) -> None:
        self._prefetcher = sample_bytes

    def note_outputs(self, sample_bytes: int) -> None:
        self._output_bytes = sample_bytes

    def keep_outputs(self, samples: int) -> None:
        self._kept = samples
