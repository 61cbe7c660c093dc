"""The objects that keep GPU memory alive: `memlab.holders`."""

from __future__ import annotations

from typing import NamedTuple

import torch

from memlab import _native
from memlab.process_recording import ensure_started


class Holder(NamedTuple):
    """An object, or names, that keep memory alive.

    `names`: one Python expression; several if only the release of all of them frees the memory. `kind`: `list`, `exception`,
    `garbage` and so on. `file`, `line`, `function`: where it is stored; empty or 0 if unknown. `bytes`: the part of the
    memory in question that it keeps. `releases` and `blocks`: what its release frees, as PyTorch's allocator counts it.
    `tensors`: tensors that it holds itself. `for_backward`: bytes of `releases` that autograd saved. `keys`: keys that
    repeat in the dictionaries below it. `cure`: what to change.
    """

    names: list[str]
    kind: str
    file: str
    line: int
    function: str
    bytes: int
    releases: int
    blocks: int
    tensors: int
    for_backward: int
    keys: list[str]
    cure: str


class Holders(list[Holder]):
    """The holders, the one with the most bytes first. `unreached`: bytes that no Python object leads to."""

    unreached: int

    def __init__(self, holders: list[Holder], unreached: int) -> None:
        super().__init__(holders)
        self.unreached = unreached


def holders(what: torch.Tensor | str | None = None, *, device: int | None = None) -> Holders:
    """Searches for what keeps GPU memory alive: of a tensor, of a line (`"train.py:12"`), or all of it.

    The search runs in a copy of the process: the program stands still for some milliseconds. It needs a process that memlab
    records (`memlab run`, or `memlab.start()`). The result is empty while nothing is on a GPU. Raises ValueError if `what`
    is neither, or has no memory that was recorded, and RuntimeError if no search can be made.

    >>> import memlab
    >>> found = memlab.holders()  # Empty while nothing is on a GPU.
    >>> sum(holder.bytes for holder in found) + found.unreached == memlab.tracker.totals().allocated
    True
    """
    ensure_started()
    addresses, line = None, None
    if isinstance(what, torch.Tensor):
        addresses = [what.data_ptr()]
        if addresses == [0]:
            raise ValueError("the tensor has no memory: pass a tensor with elements")
    elif isinstance(what, str):
        file, _, number = what.rpartition(":")
        if not file or not number.isdigit():
            raise ValueError(f"{what!r} is not a line: write it as train.py:12")
        line = file, int(number)
    elif what is not None:
        raise ValueError(f"expected a tensor or a line such as 'train.py:12', not {type(what).__name__}")
    return _searched(device, addresses, line)


def holders_of_blocks(addresses: list[int]) -> Holders:
    """Searches for what keeps the blocks at these addresses alive. Raises RuntimeError if no search can be made."""
    return _searched(None, addresses, None)


def _searched(device: int | None, addresses: list[int] | None, line: tuple[str, int] | None) -> Holders:
    rows, unreached = _native.search_holders(device, addresses, line)
    return Holders([Holder(*row) for row in rows], unreached)
