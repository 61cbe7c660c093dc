"""Host memory that holds all weights of a paged model, one after the other, pinned where the system allows it."""

from __future__ import annotations

import ctypes

import torch

from memlab import _native
from memlab._paging.paged_tensor import PagedTensor, Weight
from memlab._paging.torch_private import storage_key, use_count

PIN_GRANULE, PAGE_SIZE = _native.PIN_GRANULE, _native.PAGE_SIZE


def arena_for(weights: list[Weight]) -> _native.Arena:
    """Gives each weight its offset in an arena made for them.

    The driver refuses a copy across the border of two pinned pieces, so borders are between weights.
    """
    offset, began, borders = 0, 0, []
    for weight in weights:
        if offset > began and offset + weight.padded_nbytes - began > PIN_GRANULE:
            offset = began = -(-offset // PAGE_SIZE) * PAGE_SIZE
            borders.append(offset)
        weight.offset = offset
        offset += weight.padded_nbytes
    return _native.Arena(offset, borders)


class ArenaMemory:
    """The arena as storages: of the CPU, and, where it is pinned, of the GPU that reads it over the bus."""

    def __init__(self, arena: _native.Arena) -> None:
        self.arena = arena
        memory = (ctypes.c_char * max(arena.nbytes, 1)).from_address(arena.address)
        memory.arena = arena  # type: ignore[attr-defined]  # The storage keeps its memory alive.
        self.storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()

    def of_weight(self, weight: Weight) -> torch.UntypedStorage:
        """A weight's bytes as one storage, so that saving one tensor does not save the whole arena."""
        return self.storage[weight.offset : weight.offset + weight.padded_nbytes]

    def of_tensor(self, paged: PagedTensor) -> torch.UntypedStorage:
        """A tensor's bytes alone."""
        start = paged.weight.offset + paged.byte_offset
        return self.storage[start : start + paged.tensor.nbytes]

    def mapped(self, device: torch.device, weight: Weight) -> torch.UntypedStorage:
        """A weight's bytes as memory of the device; needs a pinned arena unless that is the CPU."""
        if device.type == "cpu":
            return self.of_weight(weight)
        window = _CudaArray(self.arena, self.arena.address + weight.offset, weight.padded_nbytes)
        return torch.as_tensor(window, device=device).untyped_storage()


class _CudaArray:
    """Pinned host memory as an array that PyTorch takes without copying (the CUDA array interface)."""

    def __init__(self, arena: _native.Arena, address: int, nbytes: int) -> None:
        self.arena = arena
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


def copy_in(weights: list[Weight], memory: ArenaMemory) -> None:
    """Moves the weights' bytes into the arena, one weight after the other: the host never holds all of them twice."""
    for weight in weights:
        storage = memory.of_weight(weight)
        for paged in weight.tensors:
            source = paged.tensor.detach()
            if source.device.type != "cpu":
                source = source.cpu()
            view = paged.view_over(storage)
            if source.is_contiguous() and view.is_contiguous():
                start = storage.data_ptr() - memory.arena.address + paged.byte_offset
                memory.arena.fill(start, source.data_ptr(), source.nbytes)
            else:
                view.copy_(source)
        point_at_arena(weight, memory)


def point_at_arena(weight: Weight, memory: ArenaMemory) -> None:
    """Makes the model's own tensors views of the arena."""
    weight.arena_storage = memory.of_weight(weight)
    for paged in weight.tensors:
        if paged.tensor.is_inference():
            # `.data` of an inference tensor cannot be set: another tensor of the same kind replaces it in its modules.
            paged.tensor = paged.twin_over(weight.arena_storage)
            for entry in paged.entries:
                entry.put(paged.tensor)
        else:
            paged.tensor.data = paged.view_over(weight.arena_storage)
        paged.mark_known()
    weight.own_use_count = use_count(storage_key(weight.arena_storage))
