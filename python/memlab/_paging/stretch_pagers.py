"""Pagers for a model over several devices: one for the whole model in the survey, then one for each stretch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from memlab._paging.arena import ArenaMemory
from memlab._paging.boundaries import WrappedModule
from memlab._paging.compute_speed import operations_per_second
from memlab._paging.cut import Cut, Stretch, cut
from memlab._paging.device_capacities import capacity_of, settings_for
from memlab._paging.device_pager import DevicePager
from memlab._paging.module_patch import ModulePatch
from memlab._paging.paged_tensor import Weight
from memlab._paging.plan_state import PlanState
from memlab._paging.settings import Settings
from memlab._paging.split import DeviceCapacity
from memlab._paging.survey import Survey, SurveyTracer


class SurveyPager(DevicePager):
    """Pages all weights to the first device until the model has been surveyed."""

    def begin(self, survey: Survey) -> None:
        self.survey = survey
        survey.trace = self.stages.trace

    def tracer(self) -> SurveyTracer:
        return SurveyTracer(self.survey, self.stages.weights, self.settings.device, self.memory.arena.pinned)


def survey_pager(
    model: nn.Module,
    weights: list[Weight],
    wrapped: list[WrappedModule],
    memory: ArenaMemory,
    settings: Settings,
    state: PlanState,
    patch: ModulePatch,
) -> SurveyPager:
    """Returns the pager of the surveyed forward."""
    pager = SurveyPager(model, weights, wrapped, set(), memory, settings, state, patch, unwraps=False)
    pager.begin(Survey(model))
    return pager


def capacities_of(
    settings: Sequence[Settings], memory: ArenaMemory, weights: list[Weight], survey: Survey
) -> list[DeviceCapacity]:
    """Returns each device's capacity for weights."""
    largest = max(weight.padded_nbytes for weight in weights)
    return [capacity_of(one, memory, largest, survey.trace.activations) for one in settings]


def cut_into(capacities: Sequence[DeviceCapacity], survey: Survey, weights: list[Weight], device: torch.device) -> Cut:
    """Cuts a model for devices that compute as fast as `device`."""
    largest = max(weights, key=lambda weight: weight.nbytes)
    return cut(survey, weights, capacities, operations_per_second(device, largest.tensors[0].tensor.dtype))


def stretch_pager(
    model: nn.Module,
    stretch: Stretch,
    wrapped: list[WrappedModule],
    memory: ArenaMemory,
    settings: Settings,
    device_capacity: DeviceCapacity,
    patch: ModulePatch,
    *,
    is_first: bool,
) -> DevicePager:
    """Returns a pager for a stretch, started with the stretch's trace. `is_first`: this device pinned the arena."""
    weights = stretch.weights
    state = PlanState(str(settings.device), host_bytes=sum(weight.padded_nbytes for weight in weights))
    state.pinned, state.bytes_per_second = memory.arena.pinned, device_capacity.bytes_per_second
    if is_first and state.pinned:
        # PyTorch attributes the memory to the device that pinned it. Only kernels there can read it.
        for weight in weights:
            if memory.arena.shielded or not weight.shared:
                weight.mapped_storage = memory.mapped(settings.device, weight)
    settings = settings_for(settings, device_capacity)
    pager = DevicePager(model, weights, wrapped, set(), memory, settings, state, patch, unwraps=False)
    pager.stages.trace = stretch.trace
    return pager


def share_touches(stretches: Sequence[Stretch], pagers: Sequence[DevicePager]) -> None:
    """Marks a weight that tied modules have on several devices as perhaps edited, if it was read from any of them."""
    if not any(pager.swap.touched() for pager in pagers):
        return
    tied: dict[int, list[Any]] = {}
    for stretch, pager in zip(stretches, pagers, strict=True):
        entries = [
            (weight.offset, entry)
            for weight in stretch.weights
            if weight.other_stretches
            for paged in weight.tensors
            for entry in paged.entries
        ]
        for offset, entry in entries:
            swapped = pager.swap.dicts.get((id(entry.module), entry.attribute))
            if swapped is not None:
                tied.setdefault(offset, []).append(swapped.outside)
    for dicts in tied.values():
        if any(watched.touched for watched in dicts):
            for watched in dicts:
                watched.touched = True
