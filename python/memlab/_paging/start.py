"""Starts the paging of a model whose weights are in the arena."""

from __future__ import annotations

import torch
from torch import nn

from memlab._paging import compiled_code  # noqa: F401 (its import excludes memlab's functions)
from memlab._paging.arena import ArenaMemory
from memlab._paging.module_patch import is_patched
from memlab._paging.multi_device_pager import MultiDevicePager
from memlab._paging.other_hooks import refuse_hooked
from memlab._paging.paged_tensor import Weight
from memlab._paging.plan_state import NO_PLAIN_MEMORY, SMALL_BUFFERS, PlanState
from memlab._paging.settings import Settings
from memlab._paging.single_device_pager import SingleDevicePager
from memlab._paging.sizes import readable
from memlab._paging.tensor_memory import is_plain, move_together
from memlab._paging.warn import warn


def start_paging(
    model: nn.Module, weights: list[Weight], residents: list[list[torch.Tensor]], memory: ArenaMemory, settings: Settings
) -> SingleDevicePager:
    """Pins the arena, moves residents to the device, and wraps the model's forwards.

    `residents`: tensors that stay on the device, those over one storage in one list. Warns if the arena is not pinned, or
    most of the model is resident.
    """
    state = _pinned(str(settings.device), memory, settings)
    with torch.no_grad(), torch.inference_mode(False):
        for tensors in residents:
            move_together(tensors, settings.device)
            reason = SMALL_BUFFERS if is_plain(tensors[0]) else NO_PLAIN_MEMORY
            state.add_resident(reason, max(tensor.nbytes for tensor in tensors))
        if state.resident_tensors.get(NO_PLAIN_MEMORY, 0) > state.host_bytes:
            warn(
                f"memlab: of this model's weights {readable(state.host_bytes)} are paged and "
                f"{readable(state.resident_tensors[NO_PLAIN_MEMORY])} stay on the device: {NO_PLAIN_MEMORY}"
            )
        _map(weights, memory, settings, state)
        pager = SingleDevicePager(model, weights, memory, settings, state)
    pager.patch.residents.update(id(tensor) for tensors in residents for tensor in tensors)
    return pager


def start_paging_to_several(
    model: nn.Module,
    weights: list[Weight],
    residents: list[list[torch.Tensor]],
    memory: ArenaMemory,
    settings: list[Settings],
) -> MultiDevicePager:
    """Starts paging to several devices. `residents`: empty tensors, which are on the first device."""
    state = _pinned(", ".join(str(one.device) for one in settings), memory, settings[0])
    with torch.no_grad(), torch.inference_mode(False):
        for tensors in residents:
            move_together(tensors, settings[0].device)
        _map(weights, memory, settings[0], state)
        pager = MultiDevicePager(model, weights, memory, settings, state)
    pager.patch.residents.update(id(tensor) for tensors in residents for tensor in tensors)
    return pager


def _pinned(device: str, memory: ArenaMemory, settings: Settings) -> PlanState:
    """Pins the arena if a GPU is used. Warns if the system refuses."""
    state = PlanState(device, host_bytes=memory.arena.nbytes, shared_bytes=memory.arena.shared_nbytes)
    if settings.device.type == "cuda":
        state.pinned = memory.arena.pin(settings.device.index)
        if not state.pinned:
            state.notes.append(f"not pinned: {memory.arena.refused}")
            warn(f"memlab: {memory.arena.refused}")
        elif memory.share is not None and not memory.arena.shielded:
            # A kernel with access to such memory could write to the weights of other processes.
            state.notes.append("this driver pins no memory for reading only: shared embeddings are copied as a whole")
    return state


def _map(weights: list[Weight], memory: ArenaMemory, settings: Settings, state: PlanState) -> None:
    """Lets kernels of the device read the weights in place, if the arena is pinned."""
    for weight in weights:
        if state.pinned and (memory.arena.shielded or not weight.shared):
            weight.mapped_storage = memory.mapped(settings.device, weight)


def refuse_patched(model: nn.Module) -> None:
    """Raises RuntimeError if a model, or a part of it, is paged or chunked, or if another library moves its weights."""
    if is_patched(model):
        raise RuntimeError("this model, or a part of it, is paged or chunked already: call memlab.unpage(model) first")
    refuse_hooked(model)
