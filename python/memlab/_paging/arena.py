"""Host memory that holds all weights of a paged model, one after the other, pinned where the system allows it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from memlab import _native
from memlab._paging.paged_tensor import PagedTensor, Weight
from memlab._paging.tensor_memory import all_bytes
from memlab._paging.torch_private import storage_key, use_count

PIN_GRANULE, PAGE_SIZE = _native.PIN_GRANULE, _native.PAGE_SIZE


@dataclass(frozen=True)
class ArenaLayout:
    """Bytes of the arena in all, bytes of the shared part at its start, and the ends of its pieces."""

    nbytes: int
    shared_nbytes: int
    borders: list[int]


def lay_out(weights: list[Weight]) -> ArenaLayout:
    """Assigns each weight its offset in an arena, shared weights first.

    The driver refuses a copy across the border of two pinned pieces, so borders lie between weights.
    """
    offset, began, shared_nbytes = 0, 0, 0
    borders: list[int] = []
    for is_shared in (True, False):
        for weight in (weight for weight in weights if weight.shared is is_shared):
            if offset > began and offset + weight.padded_nbytes - began > PIN_GRANULE:
                offset = began = _whole_pages(offset)
                borders.append(offset)
            weight.offset = offset
            offset += weight.padded_nbytes
        if is_shared and offset:
            offset = began = shared_nbytes = _whole_pages(offset)
            borders.append(offset)
    return ArenaLayout(offset, shared_nbytes, [border for border in borders if border < offset])


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // PAGE_SIZE) * PAGE_SIZE


class ArenaMemory:
    """The arena as storages: of the CPU and, where it is pinned, of the GPU that reads it over the bus.

    The process maps the shared part twice, over the same pages. Copies read the first mapping, which is read-only. The
    model's tensors use the second mapping, a view: the program's writes there go to private pages.
    """

    def __init__(self, arena: _native.Arena, share: _native.HostShare | None = None) -> None:
        self.arena = arena
        self.share = share  # The shared part, if any.
        self.filled = _storage_at(arena, arena.address, arena.nbytes)  # Written while it is filled, and copied from.
        self.view = None if arena.view_address is None else _storage_at(arena, arena.view_address, arena.shared_nbytes)

    def of_weight(self, weight: Weight) -> torch.UntypedStorage:
        """Returns a weight's bytes as one storage, so that saving one tensor does not save the whole arena."""
        return self._of_model(weight)[weight.offset : weight.offset + weight.padded_nbytes]

    def of_tensor(self, paged: PagedTensor) -> torch.UntypedStorage:
        """Returns the bytes of one tensor only."""
        start = paged.weight.offset + paged.byte_offset
        return self._of_model(paged.weight)[start : start + paged.tensor.nbytes]

    def _of_model(self, weight: Weight) -> torch.UntypedStorage:
        return self.view if weight.shared and self.view is not None else self.filled

    def filled_of(self, weight: Weight) -> torch.UntypedStorage:
        """Returns a weight's bytes as they are copied to the device."""
        return self.filled[weight.offset : weight.offset + weight.padded_nbytes]

    def differs(self, paged: PagedTensor, tensor: Tensor) -> bool:
        """Returns True if a tensor on the CPU differs from its bytes in the arena."""
        ours = paged.view_over(self.filled_of(paged.weight))
        if tensor.is_contiguous() and ours.is_contiguous():
            start = paged.weight.offset + paged.byte_offset
            return self.arena.differs(start, tensor.data_ptr(), tensor.nbytes)
        return not torch.equal(_in_order(ours), _in_order(tensor))

    def mapped(self, device: torch.device, weight: Weight) -> torch.UntypedStorage:
        """Returns a weight's bytes as memory of the device. Requires a pinned arena, unless the device is the CPU."""
        if device.type == "cpu":
            return self.of_weight(weight)
        window = _CudaArray(self.arena, self.arena.address + weight.offset, weight.padded_nbytes)
        return torch.as_tensor(window, device=device).untyped_storage()


def _in_order(tensor: Tensor) -> Tensor:
    """Returns the bytes of a tensor's elements, in order, whatever its strides."""
    return all_bytes(tensor.clone(memory_format=torch.contiguous_format).untyped_storage())


def _storage_at(arena: _native.Arena, address: int, nbytes: int) -> torch.UntypedStorage:
    memory = (ctypes.c_char * max(nbytes, 1)).from_address(address)
    memory.arena = arena  # type: ignore[attr-defined]  # The storage keeps its memory alive.
    return torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()


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


def copy_in(weights: Iterable[Weight], memory: ArenaMemory) -> None:
    """Moves the weights' bytes into the arena, one weight at a time, so that the host never holds all of them twice."""
    for weight in weights:
        storage = memory.filled_of(weight)
        for paged in weight.tensors:
            source = paged.tensor.detach()
            if source.device.type != "cpu":
                source = source.cpu()
            view = paged.view_over(storage)
            if source.is_contiguous() and view.is_contiguous():
                memory.arena.fill(weight.offset + paged.byte_offset, source.data_ptr(), source.nbytes)
            else:
                view.copy_(source)
        point_at_arena(weight, memory)


def point_at_arena(weight: Weight, memory: ArenaMemory) -> None:
    """Makes the model's own tensors views of the arena."""
    weight.arena_storage = memory.of_weight(weight)
    for paged in weight.tensors:
        if paged.tensor.is_inference():
            # `.data` of an inference tensor cannot be set, so another tensor of the same kind replaces it in its modules.
            paged.tensor = paged.twin_over(weight.arena_storage)
            for entry in paged.entries:
                entry.put(paged.tensor)
        else:
            paged.tensor.data = paged.view_over(weight.arena_storage)
        paged.mark_known()
    weight.own_use_count = use_count(storage_key(weight.arena_storage))
