"""Prefetch for a batch in host memory: each piece is copied to the GPU during the computation of the one before it.

GPU memory is allocated before the computation is queued, on its stream. So the copies wait only for earlier uses of that
memory, and nothing else waits. They run on a separate stream, from pinned memory. Tensors that are not pinned go through
pinned parts of a few rows, which PyTorch keeps for reuse. Two parts are on their way at a time, so the host is at most one
piece ahead of the GPU.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from memlab._batches.nested import Samples
from memlab._batches.out_of_memory import is_out_of_memory

# Large enough for the full speed of the bus.
_PART_BYTES = 32 << 20
_PARTS = 2

Leaves = list[tuple[Any, Any]]


class PiecePrefetcher:
    """Prefetches the pieces of samples and their targets to a device."""

    def __init__(self, device: torch.device, batches: Sequence[Samples | None]) -> None:
        self._device = device
        self._batches = batches
        known = [batch for batch in batches if batch is not None]
        on_host = [(batch, leaf) for batch in known for leaf in batch.leaves if _is_on_host(leaf)]
        waiting = [leaf for batch, leaf in on_host if batch.is_cut(leaf)]
        is_useful = device.type == "cuda" and all(_is_plain(leaf) for _, leaf in on_host)
        #: Bytes per sample of the next piece on the device, while the current piece is computed.
        self.sample_bytes = sum(leaf[0].nbytes for leaf in waiting) if is_useful else 0
        self._copies = PieceCopies(device) if self.sample_bytes else None
        self._rows: range | None = None
        self._is_copied = False
        self._allocated: list[Leaves] = []

    def take(self, rows: range) -> list[Any]:
        """A piece of each batch, for the current stream: the prefetched one, if its rows match."""
        if self._rows is None or self._copies is None:
            return self._now(rows)
        found, is_copied, allocated = self._rows, self._is_copied, self._allocated
        self.drop()
        if found != rows or not is_copied:
            return self._now(rows)
        return [
            None if batch is None else batch.filled([there for _, there in leaves])
            for batch, leaves in zip(self._batches, allocated, strict=True)
        ]

    def allocate(self, rows: range | None) -> None:
        """Allocates memory for the next piece, before the computation of the current one is queued."""
        self.drop()
        if rows is None or self._copies is None:
            return
        try:
            self._allocated = [self._places(batch, rows) for batch in self._batches]
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return  # It is copied in its turn.
        self._copies.follow()
        self._rows = rows

    def copy(self) -> None:
        """Copies the next piece, after the computation of the current one was queued."""
        if self._rows is not None and self._copies is not None:
            for leaves in self._allocated:
                self._copies.start(leaves)
            self._is_copied = True

    def drop(self) -> None:
        """Forgets the prefetched piece. Its memory is reused only after the copy."""
        if self._rows is not None and self._copies is not None:
            self._copies.finish()
        self._rows, self._is_copied, self._allocated = None, False, []

    def _now(self, rows: range) -> list[Any]:
        return [None if batch is None else batch.piece(rows, self._device) for batch in self._batches]

    def _places(self, batch: Samples | None, rows: range) -> Leaves:
        """Each value of a piece, with its place on the device."""
        leaves = [] if batch is None else batch.taken(rows)
        return [(leaf, self._place(leaf)) for leaf in leaves]

    def _place(self, leaf: Any) -> Any:
        if not _is_on_host(leaf):
            return leaf.to(self._device, non_blocking=True) if isinstance(leaf, Tensor) else leaf
        return torch.empty_like(leaf, device=self._device, requires_grad=False)


class PieceCopies:
    """Copies to a device on a separate stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = _stream(device)
        # The last copies: each holds a pinned part until it is complete.
        self._parts: deque[torch.cuda.Event] = deque()

    def follow(self) -> None:
        """Orders later copies after all work queued on the current stream."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def finish(self) -> None:
        """Orders later work on the current stream after the copies."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def start(self, leaves: Leaves) -> None:
        """Copies tensors from the host to their places."""
        with torch.no_grad(), torch.cuda.stream(self._stream):
            for leaf, place in leaves:
                if _is_on_host(leaf) and leaf.is_pinned():
                    place.copy_(leaf, non_blocking=True)
                elif _is_on_host(leaf):
                    self._through_pinned(leaf, place)

    def _through_pinned(self, leaf: Tensor, place: Tensor) -> None:
        rows = max(_PART_BYTES // max(leaf[:1].nbytes, 1), 1) if leaf.dim() else 1
        parts = zip(leaf.split(rows), place.split(rows), strict=True) if leaf.dim() else [(leaf, place)]
        for part, into in parts:
            if len(self._parts) == _PARTS:
                self._parts.popleft().synchronize()
            pinned = torch.empty_like(into, device="cpu", pin_memory=True)
            into.copy_(pinned.copy_(part), non_blocking=True)
            self._parts.append(self._stream.record_event())


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _is_on_host(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.device.type == "cpu"


def _is_plain(leaf: Tensor) -> bool:
    """True if shape and type describe the tensor completely."""
    return type(leaf) in (Tensor, nn.Parameter) and leaf.layout == torch.strided and not leaf.is_quantized
