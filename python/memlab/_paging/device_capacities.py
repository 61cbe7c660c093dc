"""Capacity of each of several devices for weights: its budget, and the bandwidth of its bus."""

from __future__ import annotations

import dataclasses

import torch

from memlab import _native
from memlab._paging.arena import ArenaMemory
from memlab._paging.device_memory import capacity
from memlab._paging.settings import Settings
from memlab._paging.split import DeviceCapacity
from memlab._paging.torch_private import raw_stream

_MEASURED = 64 << 20  # Largest copy that is timed, in bytes.


def capacity_of(settings: Settings, memory: ArenaMemory, largest: int, activations: int) -> DeviceCapacity:
    """Returns the capacity of a device.

    `largest`: bytes of the largest weight. `activations`: bytes that a forward needs in addition to the weights.
    """
    free = capacity(settings.device, activations)
    budget = free if settings.budget is None else largest if settings.budget == "min" else min(int(settings.budget), free)
    return DeviceCapacity(budget, _bandwidth(settings, memory))


def settings_for(settings: Settings, device_capacity: DeviceCapacity) -> Settings:
    """Replaces a budget of None by the capacity: a stretch that fits in free memory stays on its device."""
    return dataclasses.replace(settings, budget=device_capacity.budget) if settings.budget is None else settings


def _bandwidth(settings: Settings, memory: ArenaMemory) -> float:
    device = settings.device
    pipeline = _native.Pipeline(memory.arena, None if device.type == "cpu" else device.index, settings.bytes_per_second)
    nbytes = min(memory.arena.nbytes, _MEASURED)
    with torch.inference_mode(False):
        target = torch.empty(nbytes, dtype=torch.uint8, device=device)
    return pipeline.bandwidth(target.data_ptr(), nbytes, raw_stream(device))
