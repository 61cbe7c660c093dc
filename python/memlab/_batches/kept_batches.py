"""Values that a training keeps of its batches."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

from torch import Tensor

from memlab import _native
from memlab._batches.disk_store import DiskStore, EpochValues, nbytes_of
from memlab._batches.nested import joined
from memlab._batches.records import Records
from memlab._paging.torch_private import tree_map_only

#: Keep nothing; the last batch; only losses, of all batches; all values on the CPU; all values on the disk.
POLICIES = ("none", "last", "metrics", "host", "disk")


class PieceOutputs:
    """The outputs of a model for the pieces of a batch, on the CPU.

    >>> import torch
    >>> pieces = PieceOutputs()
    >>> pieces.add(range(2, 3), torch.zeros(1, 2))
    >>> pieces.add(range(2), torch.ones(2, 2))
    >>> pieces.whole()
    tensor([[1., 1.],
            [1., 1.],
            [0., 0.]])
    """

    def __init__(self) -> None:
        self._parts: dict[int, tuple[range, Any]] = {}

    def add(self, rows: range, outputs: Any) -> None:
        """Adds the outputs for some samples. A piece that ran out of memory is added again, in halves."""
        self._parts[rows.start] = (rows, tree_map_only(Tensor, lambda one: one.detach().to("cpu", copy=True), outputs))

    def whole(self) -> Any:
        """All outputs together; None: no outputs were added, or they have no row for each sample."""
        parts = [self._parts[begin] for begin in sorted(self._parts)]
        try:
            return joined([outputs for _, outputs in parts], [rows for rows, _ in parts]) if parts else None
        except ValueError:
            return None


class KeptBatches:
    """Inputs, targets, outputs and losses of batches, by epoch and batch, without graphs.

    >>> import torch
    >>> kept = KeptBatches("metrics")
    >>> kept.begin_epoch()
    >>> record = kept.records.add(torch.tensor(0.5), 8)
    >>> kept.add(inputs=[1], targets=[2], outputs=None)
    >>> kept.losses, kept.inputs
    ([[(0.5, 8)]], [<0 batches>])
    """

    def __init__(self, policy: str, nbytes: str | int | None = None, folder: str | os.PathLike[str] | None = None) -> None:
        """`nbytes`: maximum bytes of inputs, targets and outputs; the oldest batches are dropped. `folder`: the folder for
        ``"disk"``; None: a temporary one."""
        if policy not in POLICIES:
            raise ValueError(f"keep={policy!r}: must be one of {', '.join(map(repr, POLICIES))}")
        if folder is not None and policy != "disk":
            raise ValueError(f'keep_folder needs keep="disk", not keep={policy!r}')
        self.policy, self.folder, self.nbytes = policy, folder, _size(nbytes)
        self._files = DiskStore(folder) if policy == "disk" else None
        self.records = Records()
        self._forget_tensors()

    @property
    def wants_outputs(self) -> bool:
        """True if outputs are kept."""
        return self.policy not in ("none", "metrics")

    def bound(self, nbytes: str | int | None) -> None:
        """Sets the maximum bytes of inputs, targets and outputs from now on."""
        self.nbytes = _size(nbytes)
        self._make_room(0)

    @property
    def losses(self) -> list[list[tuple[float, int]]]:
        """``(loss, samples)`` of batches. Waits for losses that a GPU is still computing."""
        if self.policy in ("none", "last"):
            last = self.records.losses()[-1:] if self.policy == "last" else []
            return [epoch[-1:] for epoch in last] if last else [[] for _ in self.inputs]
        return self.records.losses()

    def clear(self) -> None:
        """Forgets everything."""
        for epoch, batch in self._held:
            self._drop(epoch, batch)
        self._forget_tensors()
        self.records.clear()

    def begin_epoch(self) -> None:
        """Begins a new epoch."""
        self.records.begin_epoch()
        self._begin_tensors()

    def add(self, *, inputs: Any, targets: Any, outputs: Any) -> None:
        """Adds the values of a trained batch, which is already in `records`."""
        if not self.inputs:
            self._begin_tensors()
        if self.policy in ("none", "metrics"):
            return
        if self.policy == "last":
            self._forget_tensors()
            self._begin_tensors()
        values = (inputs, targets, outputs)
        nbytes = sum(map(nbytes_of, values))
        self._make_room(nbytes)
        fits = self.nbytes is None or nbytes <= self.nbytes
        for container, value in zip(self._containers(), values, strict=True):
            container[-1].append(self._as_kept(value) if fits else None)
        if fits and self.policy != "last":
            self._held.append((len(self.inputs) - 1, len(self.inputs[-1]) - 1))
            self._sizes.append(nbytes)

    def _as_kept(self, value: Any) -> Any:
        if value is None:
            return None
        if self._files is not None:
            return self._files.store(value)
        return tree_map_only(Tensor, lambda one: one.detach() if self.policy == "last" else one.detach().cpu(), value)

    def _make_room(self, nbytes: int) -> None:
        while self.nbytes is not None and self._held and sum(self._sizes) + nbytes > self.nbytes:
            self._sizes.popleft()
            self._drop(*self._held.popleft())

    def _drop(self, epoch: int, batch: int) -> None:
        for container in self._containers():
            container[epoch].drop(batch)

    def _forget_tensors(self) -> None:
        self.inputs: list[EpochValues] = []
        self.targets: list[EpochValues] = []
        self.outputs: list[EpochValues] = []
        # Held batches, as (epoch, batch), and the bytes of each: the oldest first.
        self._held: deque[tuple[int, int]] = deque()
        self._sizes: deque[int] = deque()

    def _begin_tensors(self) -> None:
        if self.policy in ("none", "last"):
            self._forget_tensors()
        for container in self._containers():
            container.append(EpochValues())

    def _containers(self) -> tuple[list[EpochValues], list[EpochValues], list[EpochValues]]:
        return self.inputs, self.targets, self.outputs


def _size(nbytes: str | int | None) -> int | None:
    size = _native.parse_size(nbytes) if isinstance(nbytes, str) else nbytes
    if size is not None and (type(size) is not int or size < 0):
        raise ValueError(f"keep_nbytes={nbytes!r}: must be a whole number of bytes, or a size such as '20GiB'")
    return size
