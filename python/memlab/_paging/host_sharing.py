"""Shares weights between the processes of one host: selects them, names the group, and checks that they are equal.

The first process of a name fills the memory. The others compare their own weights with it, byte by byte, and free them.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from torch import nn

from memlab import _native
from memlab._paging.arena import ArenaMemory, copy_in, lay_out, point_at_arena
from memlab._paging.paged_tensor import Weight
from memlab._tools.messages import patient, warn_once

# Seconds that a process waits for another before it reports the wait.
SILENT_SECONDS = 5

# Part of each name. Processes with another arena layout, or other rules to fill it, share nothing.
LAYOUT_VERSION = 1


def arena_memory(model: nn.Module, weights: list[Weight], group: str | None, files: Any = ()) -> ArenaMemory:
    """Returns memory for the weights. With a `group`, all processes that page the same model share it.

    Waits while another process fills the shared memory.

    Args:
        files: identities of the files that the weights are read from, as values that `json` accepts.

    Raises: RuntimeError if the memory cannot be shared.
    """
    if group is not None:
        _choose_shared(model, weights)
    layout = lay_out(weights)
    share = None
    if group is not None and layout.shared_nbytes:
        name = _name(weights, layout.shared_nbytes, group, files)
        share = _native.HostShare.join(name, layout.shared_nbytes, _Waiting())
    try:
        return ArenaMemory(_native.Arena(layout.nbytes, layout.borders, share), share)
    except BaseException:
        if share is not None:
            share.abandon()
        raise


def fill(
    weights: list[Weight],
    memory: ArenaMemory,
    fill_in: Callable[[list[Weight]], None],
    from_files: Collection[int] = (),
) -> None:
    """Fills the arena with the weights and makes the model use it. Calls `fill_in` unless another process has filled it.

    Args:
        from_files: ids of tensors whose values are in files, which are known to be the same.

    Raises: ValueError that names a weight whose values differ from those of the other processes. The model is unchanged.
    """
    shared = [weight for weight in weights if weight.shared]
    share = memory.share
    if share is not None and share.first:
        try:
            fill_in(shared)
            memory.arena.publish()
        finally:
            share.abandon()  # Does nothing once it is published. Otherwise the next process fills it.
    else:
        for weight in shared:
            _refuse_difference(weight, memory, from_files)
        for weight in shared:
            point_at_arena(weight, memory)
    fill_in([weight for weight in weights if not weight.shared])


def fill_from_model(weights: list[Weight], memory: ArenaMemory) -> None:
    """Calls `fill` with the present values of the model."""
    fill(weights, memory, lambda some: copy_in(some, memory))


class _Waiting:
    """Reports, after some seconds, the process that this one waits for."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def __call__(self, process: int) -> None:
        if time.monotonic() - self._since >= patient(SILENT_SECONDS):
            warn_once(f'shared="host" waits for {_described(process)}, which fills or hands out the weights')


def _described(process: int) -> str:
    """Formats a process by its number and command; 0 is a process that is not visible from here."""
    try:
        words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").strip("\0").split("\0")
        is_stopped = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return f"process {process}" if process else "a process of another container"
    # Without folders, which can be so long that nothing else is read.
    command = " ".join(Path(word).name if word.startswith("/") else word for word in words)
    named = "".join(letter if letter.isprintable() else " " for letter in command[:80])
    return f"process {process} ({named}{f'; stopped: kill -CONT {process}' if is_stopped else ''})"


def _choose_shared(model: nn.Module, weights: list[Weight]) -> None:
    """Marks parameters as shared, except trained ones if others are frozen: each process may start with its own.

    Buffers are not shared, because forwards write to them.
    """
    parameters = list(model.parameters())
    is_partly_frozen = any(one.requires_grad for one in parameters) and not all(one.requires_grad for one in parameters)
    for weight in weights:
        are_parameters = all(isinstance(paged.tensor, nn.Parameter) for paged in weight.tensors)
        weight.shared = are_parameters and not (is_partly_frozen and weight.is_trained)


def _name(weights: list[Weight], nbytes: int, group: str, files: Any) -> str:
    """Returns a name for the shared weights: a hash of their layout and their origin."""
    tensors = [
        (weight.offset, paged.byte_offset, paged.name, str(paged.tensor.dtype), paged.tensor.shape, paged.tensor.stride())
        for weight in weights
        if weight.shared
        for paged in weight.tensors
    ]
    what = json.dumps([LAYOUT_VERSION, group, nbytes, tensors, files])
    return hashlib.sha256(what.encode()).hexdigest()[:32]


def _refuse_difference(weight: Weight, memory: ArenaMemory, from_files: Collection[int]) -> None:
    for paged in weight.tensors:
        if id(paged.tensor) not in from_files and memory.differs(paged, paged.tensor.detach().cpu()):
            raise ValueError(
                f"{paged.name} has other values here than in the processes of this host that share a model of this form: "
                'load the same weights in all of them, or give models that differ a name each: shared="host:NAME"'
            )
