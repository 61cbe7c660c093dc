"""Moves CUDA storages to host memory and back, in place: all users of a storage see its bytes again.

A moved storage has 0 bytes on the GPU until it is restored. Moved memory belongs to the process, not to the `Courtesy` that
moved it, so no bytes depend on an object that a program may drop.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from dataclasses import dataclass

import torch

from memlab import _native
from memlab._paging.sizes import readable
from memlab._paging.tensor_memory import all_bytes
from memlab._paging.torch_private import storage_key, use_count
from memlab._tools.host_memory import available_host_memory

ALIGNMENT = 512  # Of each storage's place in host memory.


@dataclass
class _Copy:
    """A storage whose bytes are in host memory."""

    storage: torch.UntypedStorage
    nbytes: int
    offset: int  # In the arena.
    stream: int  # Stream of its allocation; no further synchronization needed there.
    is_coming_back: bool = False  # It may have memory on the GPU again, but does not have its bytes yet.


@dataclass
class _MovedStorages:
    """Storages that were moved together."""

    copies: list[_Copy]
    arena: _native.Arena
    host: torch.UntypedStorage  # The arena's memory.

    def bytes_of(self, copy: _Copy) -> torch.Tensor:
        return all_bytes(self.host[copy.offset : copy.offset + copy.nbytes])


_away: list[_MovedStorages] = []
_lock = threading.Lock()


def is_away() -> bool:
    """Returns True if storages of this process are in host memory."""
    return bool(_away)


def move_out(storages: list[torch.UntypedStorage], streams: dict[int, int]) -> int:
    """Moves storages to host memory, and returns their bytes. Nothing has moved if it raises.

    Args:
        storages: CUDA storages that can be resized, each once.
        streams: stream for which the memory at an address was allocated.

    Raises: MemoryError if the host has too little memory.
    """
    with _lock:
        if not storages:
            return 0
        total: int = sum(storage.nbytes() for storage in storages)
        room = available_host_memory()
        if total > room:
            raise MemoryError(
                f"{readable(total)} of GPU memory do not fit into host memory, which has {readable(room)}: nothing was moved"
            )
        away = _host_memory_for(storages, streams)
        devices = sorted({storage.device.index for storage in storages})
        for copy in away.copies:
            away.bytes_of(copy).copy_(all_bytes(copy.storage), non_blocking=True)
        _wait_for(devices)
        # Registered before the first storage is emptied.
        _away.append(away)
        for copy in away.copies:
            copy.storage.resize_(0)
        return total


def bring_back() -> int:
    """Restores the storages that the program still uses, and returns their bytes.

    Until it returns, all bytes are in host memory.

    Raises: torch.cuda.OutOfMemoryError if the GPU has no room: then nothing has changed. It can be called again after any
        error.
    """
    with _lock:
        copies = [(away, copy) for away in _away for copy in away.copies if _is_waited_for(copy)]
        devices = sorted({copy.storage.device.index for _, copy in copies})
        _wait_for(devices)
        try:
            # Large ones first, because they need whole segments. All of them before the first copy: copies need no room.
            for _, copy in sorted(copies, key=lambda entry: -entry[1].nbytes):
                copy.is_coming_back = True
                with torch.cuda.stream(_stream(copy)):
                    copy.storage.resize_(copy.nbytes)
        except torch.cuda.OutOfMemoryError as error:
            for _, copy in copies:
                copy.storage.resize_(0)
                copy.is_coming_back = False
            torch.cuda.empty_cache()
            total = readable(sum(copy.nbytes for _, copy in copies))
            raise torch.cuda.OutOfMemoryError(
                f"the GPU has no room for the {total} that were moved to host memory, where they still are: "
                "call restore() again when there is room"
            ) from error
        for away, copy in copies:
            all_bytes(copy.storage).copy_(away.bytes_of(copy), non_blocking=True)
        _wait_for(devices)
        _away.clear()
        return sum(copy.nbytes for _, copy in copies)


def _host_memory_for(storages: list[torch.UntypedStorage], streams: dict[int, int]) -> _MovedStorages:
    """Returns an arena with a place for each storage, pinned where the system allows it.

    The driver refuses a copy across the border of two pinned pieces, so borders lie between storages.
    """
    copies: list[_Copy] = []
    offset, began, borders = 0, 0, []
    for storage in storages:
        nbytes = storage.nbytes()
        padded = -(-nbytes // ALIGNMENT) * ALIGNMENT
        if offset > began and offset + padded - began > _native.PIN_GRANULE:
            offset = began = -(-offset // _native.PAGE_SIZE) * _native.PAGE_SIZE
            borders.append(offset)
        copies.append(_Copy(storage, nbytes, offset, streams.get(storage.data_ptr(), 0)))
        offset += padded
    arena = _native.Arena(offset, borders)
    arena.pin(storages[0].device.index)
    memory = (ctypes.c_char * arena.nbytes).from_address(arena.address)
    memory.arena = arena  # type: ignore[attr-defined]  # The storage keeps its memory alive.
    return _MovedStorages(copies, arena, torch.frombuffer(memory, dtype=torch.uint8).untyped_storage())


def _is_waited_for(copy: _Copy) -> bool:
    """Returns True if the program still has the storage, and has not given it memory itself meanwhile."""
    if copy.storage.nbytes() != 0 and not copy.is_coming_back:
        return False
    # One use and two references, that of `copy` and that of the call, are memlab's own.
    return use_count(storage_key(copy.storage)) > 1 or sys.getrefcount(copy.storage) > 2


def _stream(copy: _Copy) -> torch.cuda.Stream:
    device = copy.storage.device
    return torch.cuda.ExternalStream(copy.stream, device) if copy.stream else torch.cuda.default_stream(device)


def _wait_for(devices: list[int]) -> None:
    for device in devices:
        torch.cuda.synchronize(device)
