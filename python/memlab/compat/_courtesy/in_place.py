"""Yields the memory of a program that was not started for offloading, storage by storage."""

from __future__ import annotations

import gc
from typing import Any

import torch

from memlab._paging.torch_private import clear_cublas_workspaces, storage_key
from memlab.compat._courtesy.attribution import Memory, held_elsewhere
from memlab.compat._courtesy.host_copies import move_out
from memlab.compat._courtesy.result import StayedMemory, Yielded
from memlab.compat._courtesy.storages import ReachableStorages, find_storages

SHARED = "shared with other processes (CUDA IPC)"
FOREIGN = "used by another library, or allocated by it (DLPack, CUDA array interface)"
OWN_POOL = "in a memory pool of its own"

_DEFAULT_POOL = (0, 0)

Segments = list[dict[str, Any]]


def yield_in_place() -> Yielded:
    """Moves every storage that can be moved, and returns PyTorch's cache to the driver.

    Raises:
        RuntimeError: a CUDA graph exists, which uses memory by its address. Nothing has moved.
        MemoryError: the host has too little memory. Nothing has moved.
    """
    gc.collect()
    for device in _used_devices():
        torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    segments = _segments()
    found = find_storages()
    _refuse_graphs(found, segments)
    movable, fixed = _sorted_out(found, segments)
    stayed = [StayedMemory(memory.device, memory.nbytes, why) for memory, why in fixed]
    streams = {block["address"]: segment["stream"] for segment in segments for block in segment["blocks"]}
    moved = move_out(movable, streams)
    clear_cublas_workspaces()
    torch.cuda.empty_cache()
    for device in _used_devices():
        stayed += held_elsewhere(device, [memory for memory, _ in fixed if memory.device == device])
    return Yielded(moved, stayed=sorted(stayed, key=lambda row: -row.nbytes))


def _sorted_out(found: ReachableStorages, segments: Segments) -> tuple[list[torch.UntypedStorage], list[tuple[Memory, str]]]:
    """Returns the storages that can be moved, and the memory of the others with the reason."""
    shared = _shared_storages()
    pools = [Memory(s["device"], s["address"], s["total_size"]) for s in segments if _is_own_pool(s)]
    movable: list[torch.UntypedStorage] = []
    fixed: list[tuple[Memory, str]] = []
    for group in _overlapping(list(found.storages.values())):
        memory = Memory.of(group)
        if any(storage_key(storage) in shared for storage in group):
            fixed.append((memory, SHARED))
        elif len(group) > 1 or not group[0].resizable():
            fixed.append((memory, FOREIGN))
        elif any(memory.overlaps(pool) for pool in pools):
            fixed.append((memory, OWN_POOL))
        else:
            movable += group
    return movable, fixed


def _overlapping(storages: list[torch.UntypedStorage]) -> list[list[torch.UntypedStorage]]:
    """Groups storages that use the same memory, as a tensor and its DLPack copy do."""
    groups: list[list[torch.UntypedStorage]] = []
    end = 0
    for storage in sorted(storages, key=lambda storage: storage.data_ptr()):
        # Addresses of all devices are different.
        if groups and storage.data_ptr() < end:
            groups[-1].append(storage)
        else:
            groups.append([storage])
        end = max(end, storage.data_ptr() + storage.nbytes())
    return groups


def _used_devices() -> list[int]:
    """Returns the devices that PyTorch has memory on. The others must not get a context."""
    return [device for device in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(device) > 0]


def _segments() -> Segments:
    """Returns PyTorch's segments; none for an allocator that does not report them (cudaMallocAsync, a custom allocator)."""
    try:
        segments: Segments = torch.cuda.memory_snapshot()
    except RuntimeError:
        return []
    return segments


def _is_own_pool(segment: dict[str, Any]) -> bool:
    return tuple(segment["segment_pool_id"]) != _DEFAULT_POOL


def _refuse_graphs(found: ReachableStorages, segments: Segments) -> None:
    """Raises if a captured graph exists.

    It reads and writes the addresses of its capture, including parameters outside its pool.
    """
    of_pools = {tuple(torch.cuda.MemPool.id.__get__(pool)) for pool in found.pools}  # type: ignore[attr-defined]
    unknown = {tuple(segment["segment_pool_id"]) for segment in segments if _is_own_pool(segment)} - of_pools
    if unknown or any(_is_captured(graph) for graph in found.graphs):
        raise RuntimeError(
            "this program has captured a CUDA graph, which uses memory at fixed addresses: memory cannot be moved in place. "
            "Start the program with `memlab run --offload`, which keeps all addresses, or delete the graphs first"
        )


def _is_captured(graph: Any) -> bool:
    try:
        torch.cuda.CUDAGraph.pool(graph)
    except RuntimeError:  # Nothing captured yet, or reset.
        return False
    return True


def _shared_storages() -> set[int]:
    """Returns storages that torch.multiprocessing has sent to other processes or received from them."""
    from torch.multiprocessing.reductions import StorageWeakRef, shared_cache

    return {ref.cdata for ref in list(shared_cache.values()) if isinstance(ref, StorageWeakRef) and not ref.expired()}
