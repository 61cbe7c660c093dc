"""``memlab.page``: run a model whose weights do not fit, as fast as they come over the bus."""

from __future__ import annotations

import warnings
from types import NoneType
from typing import Any, TypeVar

import torch
from torch import nn

from memlab._paging.module_patch import plan_on, taken
from memlab._paging.micro_batches import repeated_blocks
from memlab._arguments import require_model
from memlab._paging.pager import Pager
from memlab.plan import NO_PLAIN_MEMORY, SMALL_BUFFERS, Plan
from memlab._paging.planning import Settings
from memlab._paging.sizes import bytes_of, readable
from memlab._paging.paged_tensor import Bytes, Weight, arena_for, collect, move_in, move_together, pageable

Model = TypeVar("Model", bound=nn.Module)


def page(
    model: Model,
    device: torch.device | str = "cuda",
    max_layer_size: int = -1,
    *,
    budget: int | str | None = None,
    prefetch: str | int = "auto",
    micro_batch: int | None = None,
    order: str = "traced",
    on_change: str = "error",
    _bytes_per_second: float | None = None,
) -> Model:
    """Makes a model run with its weights in host memory; they come to the device when they are needed. In place.

    The model stays what it is: the same modules and Parameters, the same keys in ``state_dict()``. The first forward is
    slow: it is watched, to learn which weights are used when. The second is timed. From the third on, weights are copied
    while the device computes with those before them, and ``model.memlab`` tells how that goes.

    Args:
        model: any module; its weights move into one piece of pinned host memory.
        device: where it runs: "cuda", "cuda:1", or "cpu" (the same pipeline with copies by a thread; for tests).
        max_layer_size: a module of at most this many parameters is copied as one; -1: neighbours of up to 16 MiB are.
        budget: device memory for weights, in bytes or as "8GiB"; "min" for two units; None for as little as still hides
            the transfer behind the computing (all there is, if it cannot be hidden).
        prefetch: how many units are copied ahead: "auto" for as many as the ring holds, 0 for none.
        micro_batch: samples that go through a block at a time; a batch that hides the transfer then needs less memory.
            For blocks that treat samples apart from each other.
        order: "traced", the order of the first forward. (There is no other yet.)
        on_change: what to do when weights were edited in place between forwards: "error" or "upload".

    Returns: the model.

    Raises:
        RuntimeError: it is paged already.
        TypeError: what was given is no model; says what to give.
        ValueError: an argument is off, or the budget is too small for one unit; says how much is needed.
    """
    require_model("page", model)
    settings = settings_of(
        device,
        max_layer_size,
        budget=budget,
        prefetch=prefetch,
        micro_batch=micro_batch,
        order=order,
        on_change=on_change,
        _bytes_per_second=_bytes_per_second,
    )
    refuse_twice(model)
    if micro_batch is not None:
        repeated_blocks(model)  # Raises before anything is moved.
    weights, kept = collect(model, settings.device)
    if not weights:
        raise ValueError("this model has no weights to page: move it to the device as it is")
    _check_budget(weights, settings)
    memory = Bytes(arena_for(weights))
    with torch.no_grad(), torch.inference_mode(False):
        move_in(weights, memory)
    attach(model, weights, kept, memory, settings)
    return model


def attach(model: nn.Module, weights: list[Weight], kept: list[torch.Tensor], memory: Bytes, settings: Settings) -> None:
    """Takes a model over whose weights are in the arena."""
    plan = Plan(str(settings.device), host_bytes=memory.arena.nbytes)
    if settings.device.type == "cuda":
        plan.pinned = memory.arena.pin(settings.device.index)
        if not plan.pinned:
            plan.notes.append(f"not pinned: {memory.arena.refused}")
            warnings.warn(f"memlab: {memory.arena.refused}", RuntimeWarning, stacklevel=3)
    with torch.no_grad(), torch.inference_mode(False):
        for tensors in kept:
            move_together(tensors, settings.device)
            plan.keep(SMALL_BUFFERS if pageable(tensors[0]) else NO_PLAIN_MEMORY, max(tensor.nbytes for tensor in tensors))
        if plan.kept.get(NO_PLAIN_MEMORY, 0) > plan.host_bytes:
            warnings.warn(
                f"memlab: of this model's weights {readable(plan.host_bytes)} are paged and "
                f"{readable(plan.kept[NO_PLAIN_MEMORY])} stay on the device: {NO_PLAIN_MEMORY}",
                RuntimeWarning,
                stacklevel=3,
            )
        for weight in weights:
            if plan.pinned:
                weight.reachable_storage = memory.on(settings.device, weight)
        pager = Pager(model, weights, memory, settings, plan)
    pager.takeover.kept.update(id(tensor) for tensors in kept for tensor in tensors)


def plan_of(model: nn.Module) -> Plan:
    """The plan of a paged or chunked model (the same as ``model.memlab``)."""
    require_model("plan_of", model)
    return _known_plan(model)


def _known_plan(model: nn.Module) -> Plan:
    plan = plan_on(model)
    if plan is None and taken(model):
        raise RuntimeError(
            f"this {type(model).__name__} is a part of a paged or chunked model, or has one in it: give that which was paged"
        )
    if plan is None:
        raise RuntimeError("this model is not paged: memlab.page(model) first")
    return plan


def unpage(model: Model) -> Model:
    """Gives the original model back, its parameters and buffers on the CPU, as ordinary as before."""
    require_model("unpage", model)
    _known_plan(model).release()
    with torch.no_grad(), torch.inference_mode(False):
        model.to("cpu")
    return model


def refuse_twice(model: nn.Module) -> None:
    if taken(model):
        raise RuntimeError(
            "this model, or a part of it, is paged or chunked already: memlab.unpage(model) it first to do it differently"
        )


def settings_of(
    device: torch.device | str,
    max_layer_size: int = -1,
    *,
    budget: int | str | None = None,
    prefetch: str | int = "auto",
    micro_batch: int | None = None,
    order: str = "traced",
    on_change: str = "error",
    _bytes_per_second: float | None = None,
) -> Settings:
    """`page`'s arguments, checked. Raises ValueError that names the one that is off."""

    def refuse(name: str, value: Any, wanted: str) -> ValueError:
        return ValueError(f"{name}={value!r}: must be {wanted}")

    if prefetch != "auto" and (isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0):
        raise refuse("prefetch", prefetch, '"auto" or a number of units')
    if order != "traced":
        raise refuse("order", order, '"traced"')
    if on_change not in ("error", "upload"):
        raise refuse("on_change", on_change, '"error" or "upload"')
    if micro_batch is not None and (isinstance(micro_batch, bool) or not isinstance(micro_batch, int) or micro_batch < 1):
        raise refuse("micro_batch", micro_batch, "a number of samples, or None")
    if isinstance(budget, str) and budget != "min":
        budget = bytes_of(budget)
    elif isinstance(budget, float) and budget.is_integer():
        budget = int(budget)
    if isinstance(budget, bool) or not isinstance(budget, (int, str, NoneType)):
        raise refuse("budget", budget, 'bytes, a size such as "8GiB", "min" or None')
    if isinstance(max_layer_size, bool) or not isinstance(max_layer_size, (int, float)):
        raise refuse("max_layer_size", max_layer_size, "a number of parameters, or -1")
    return Settings(
        device=device_of(device),
        max_layer_size=int(max_layer_size),
        budget=budget,
        lookahead=None if prefetch == "auto" else int(prefetch),
        micro_batch=micro_batch,
        on_change=on_change,
        bytes_per_second=_bytes_per_second,
    )


def device_of(device: torch.device | str) -> torch.device:
    """The device by its full name. Raises RuntimeError where there is no such, ValueError or TypeError for what is none."""
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError):
        wanted = f'device={device!r}: must be a device, such as "cuda" or "cuda:1"'
        if isinstance(device, str) and not device[:1].isdigit():
            raise ValueError(wanted) from None
        raise TypeError(f'{wanted}. Sizes are given by name: budget="8GiB", max_capacity="8GiB"') from None
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise ValueError(f"device={str(device)!r}: memlab pages to CUDA devices and, for tests, to the CPU")
    if not torch.cuda.is_available():
        raise RuntimeError('PyTorch finds no CUDA device here; page(model, device="cpu") runs the same pipeline without one')
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)


def _check_budget(weights: list[Weight], settings: Settings) -> None:
    """Refuses what cannot work before anything is moved. Embeddings may come row by row: the first forward tells."""
    if not isinstance(settings.budget, int):
        return
    for weight in sorted(weights, key=lambda weight: -weight.span):
        looked_up = all(isinstance(place.module, nn.Embedding) for home in weight.homes for place in home.places)
        if not looked_up and weight.span > settings.budget:
            raise ValueError(
                f"the budget of {readable(settings.budget)} is too small: {weight.name} alone takes "
                f"{readable(weight.span)}. Give at least that, or twice as much for copies to overlap with computing."
            )
