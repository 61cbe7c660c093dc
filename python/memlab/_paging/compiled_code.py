"""Excludes memlab's own functions from torch.compile: a compiled model calls them between its compiled parts."""

from __future__ import annotations

import inspect
from types import FunctionType, ModuleType

from memlab._paging import (
    arena,
    boundaries,
    clock,
    collect,
    compute_speed,
    cross_device_mode,
    cut,
    device_capacities,
    device_memory,
    device_pager,
    device_pool,
    edits,
    forward_context,
    model_pager,
    multi_device_context,
    multi_device_pager,
    multi_device_plan,
    paged_tensor,
    placed_unit,
    planning,
    saved_tensors,
    single_device_pager,
    split,
    stages,
    stretch_pagers,
    survey,
    tensor_memory,
    tensor_swap,
    torch_private,
    training,
    units,
    viewed_units,
    warn,
)

# Modules that a forward calls. `device_transfer` and `micro_batches` are absent: they are compiled like the model's own
# code.
_EXCLUDED: list[ModuleType] = [
    arena,
    boundaries,
    clock,
    collect,
    compute_speed,
    cross_device_mode,
    cut,
    device_capacities,
    device_memory,
    device_pager,
    device_pool,
    edits,
    forward_context,
    model_pager,
    multi_device_context,
    multi_device_pager,
    multi_device_plan,
    paged_tensor,
    placed_unit,
    planning,
    saved_tensors,
    single_device_pager,
    split,
    stages,
    stretch_pagers,
    survey,
    tensor_memory,
    tensor_swap,
    torch_private,
    training,
    units,
    viewed_units,
    warn,
]


def exclude_module(module: ModuleType) -> None:
    """Excludes all functions and methods that a module defines."""
    for value in vars(module).values():
        members = vars(value).values() if isinstance(value, type) else [value]
        for member in members:
            function = inspect.unwrap(getattr(member, "__func__", member)) if callable(member) else member
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                torch_private.exclude_from_compile(function)


for _module in _EXCLUDED:
    exclude_module(_module)
