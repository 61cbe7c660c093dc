"""``memlab.page``: runs a model with weights that do not fit on the GPU, as fast as they can be copied to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from memlab._arguments import require_model
from memlab._paging.collect import collect, tensors_of
from memlab._paging.host_sharing import arena_memory, fill_from_model
from memlab._paging.micro_batches import repeated_blocks
from memlab._paging.module_patch import Mark, is_patched, mark_on
from memlab._paging.paged_tensor import Weight
from memlab._paging.settings import OnChange, Settings
from memlab._paging.sizes import readable
from memlab._paging.start import refuse_patched, start_paging, start_paging_to_several
from memlab.plan import Plan

Model = TypeVar("Model", bound=nn.Module)
Budget = int | str | None


def page(
    model: Model,
    device: torch.device | str | Sequence[torch.device | str] = "cuda",
    max_layer_size: int = -1,
    *,
    budget: Budget | Sequence[Budget] | Mapping[torch.device | str, Budget] = None,
    prefetch: str | int = "auto",
    micro_batch: int | None = None,
    order: str = "traced",
    on_change: OnChange = "error",
    shared: str | None = None,
) -> Model:
    """Runs a model with its weights in host memory, copying them to the device as needed. Modifies the model.

    The model keeps its modules and Parameters, the keys of its ``state_dict()``, and its inputs and results: tensors of any
    shape, which are moved to the device. The first forward is traced, to learn the order in which weights are used, and is
    slow. The second is timed. From the third on, weights are copied while the device computes with earlier ones.
    ``model.memlab`` shows the speed.

    Args:
        model: any module. Its weights move to one piece of pinned host memory.
        device: the device that computes: ``"cuda"``, ``"cuda:1"``, or ``"cpu"`` (the same pipeline, copied by a thread; for
            tests). A list, ``["cuda:0", "cuda:1"]``: the layers in their order over several devices, each with a stretch of
            them. Inputs go to the first device, activations to the next one where its stretch begins, and results back to
            the first. Weights that fit on their device stay there. The rest is copied over the device's bus. The first
            forward runs on the first device, and the third is timed.
        max_layer_size: a module of at most this many parameters is copied as one unit; -1: neighbours of up to 16 MiB are
            copied together, of up to 64 MiB in a large model without a budget.
        budget: device memory for weights, in bytes or as ``"8GiB"``; ``"min"`` for two units; None for the smallest that
            hides the copies behind the computation (all free memory, if they cannot be hidden). For several devices: one for
            each, as a list or by device, or one value that applies to each; None for the free memory of each.
        prefetch: number of units copied ahead: ``"auto"`` for as many as the ring holds, 0 for none.
        micro_batch: samples (of the first dimension of tensors) that go through a block at a time, so that a batch large
            enough to hide the copies needs less memory. For blocks that treat samples independently.
        order: ``"traced"``, the order of the first forward: the only choice at present.
        on_change: the reaction to weights that were edited in place between forwards: ``"error"`` raises, ``"upload"``
            copies them.
        shared: ``"host"``: processes of this host that page the same model, such as the ranks of a job, hold its parameters
            once. The first fills the memory. The others wait, compare their values with it, and free their own. Such
            parameters are read-only: a forward after an edit raises, and other processes never see the edit. Buffers, and
            parameters that train beside frozen ones, are not shared. Models of the same form with different values need
            different names: ``"host:NAME"``.

    Returns: the model.

    Raises:
        RuntimeError: the model is paged already, or PyTorch finds no CUDA device, or not that one.
        TypeError: `model` is not an `nn.Module`, or `device` not a device; the message contains advice.
        ValueError: another argument is wrong (a list of devices has one twice, or the CPU beside GPUs), the budget is too
            small for one weight, or a weight has other values than in the processes that share it; the message names the
            weight and the memory needed. With several devices, the first or second forward raises it if their budgets are
            too small. Tensors without plain memory (quantized, sparse) and `micro_batch` require a single device.

    >>> import memlab, torch
    >>> model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    >>> with torch.no_grad():
    ...     expected = model(torch.ones(2, 64))
    ...     model = memlab.page(model, device="cpu", budget="40KiB")
    ...     torch.equal(model(torch.ones(2, 64)), expected)
    True
    >>> memlab.page(model, device="cpu")
    Traceback (most recent call last):
    RuntimeError: this model, or a part of it, is already paged or chunked: call memlab.unpage(model) first
    """
    require_model("page", model)
    options: dict[str, Any] = {
        "max_layer_size": max_layer_size,
        "prefetch": prefetch,
        "micro_batch": micro_batch,
        "order": order,
        "on_change": on_change,
        "shared": shared,
    }
    if not isinstance(device, (list, tuple)):
        one: Any = budget  # Refused unless it is for one device.
        return page_with(model, Settings.checked(device, budget=one, **options))
    several = Settings.several(device, budget, **options)
    return page_with(model, several[0]) if len(several) == 1 else _page_with_several(model, several)


def page_with(model: Model, settings: Settings) -> Model:
    """Implements `page`, with checked arguments."""
    refuse_patched(model)
    if settings.micro_batch is not None:
        repeated_blocks(model)  # Raises before any weight is moved.
    weights, residents = collect(model, settings.device)
    if not weights:
        raise ValueError("this model has no weights to page: move it to the device directly")
    _check_budget(weights, settings)
    memory = arena_memory(model, weights, settings.shared)
    with torch.no_grad(), torch.inference_mode(False):
        fill_from_model(weights, memory)
    pager = start_paging(model, weights, residents, memory, settings)
    pager.patch.mark(Plan(pager.state, pager.queries), pager.release, settings.device)
    return model


def _page_with_several(model: Model, settings: list[Settings]) -> Model:
    """Implements `page` for several devices, with checked arguments for each."""
    refuse_patched(model)
    weights, residents = collect(model, settings[0].device, small_buffers_stay=False)
    if not weights:
        raise ValueError("this model has no weights to page: move it to the device directly")
    filled = [tensor for tensors in residents for tensor in tensors if tensor.numel()]
    if filled:
        names = {id(tensor): name for name, tensor, _ in tensors_of(model)}
        raise ValueError(
            f"{names[id(filled[0])]} is not plain memory (quantized, sparse, or another subclass of torch.Tensor), which "
            "memlab.page supports on one device only: page the model to one device"
        )
    memory = arena_memory(model, weights, settings[0].shared)
    with torch.no_grad(), torch.inference_mode(False):
        fill_from_model(weights, memory)
    pager = start_paging_to_several(model, weights, residents, memory, settings)
    pager.patch.mark(Plan(pager.state, pager.queries), pager.release, settings[0].device)
    return model


def plan_of(model: nn.Module) -> Plan:
    """The plan of a paged or chunked model: the same as ``model.memlab``, unless the model has an attribute of that name.

    Raises:
        RuntimeError: the model is not paged, or is a part of a paged one.
        TypeError: `model` is not an `nn.Module`.

    >>> import memlab, torch
    >>> model = memlab.page(torch.nn.Linear(8, 8), "cpu")
    >>> memlab.plan_of(model) is model.memlab
    True
    """
    require_model("plan_of", model)
    plan: Plan = _mark_of(model).plan
    return plan


def unpage(model: Model) -> Model:
    """Restores a paged or chunked model, with its parameters and buffers on the CPU. Modifies the model.

    Returns: the model.

    Raises:
        RuntimeError: the model is not paged, is a part of a paged one, or is in a forward.
        TypeError: `model` is not an `nn.Module`.

    >>> import memlab, torch
    >>> model = memlab.page(torch.nn.Linear(8, 8), "cpu")
    >>> memlab.unpage(model).half().weight.dtype
    torch.float16
    """
    require_model("unpage", model)
    _mark_of(model).release()
    with torch.no_grad(), torch.inference_mode(False):
        model.to("cpu")
    return model


def _mark_of(model: nn.Module) -> Mark:
    mark = mark_on(model)
    if mark is None and is_patched(model):
        raise RuntimeError(
            f"this {type(model).__name__} is a part of a paged or chunked model, or contains one: pass the paged model"
        )
    if mark is None:
        raise RuntimeError("this model is not paged: call memlab.page(model) first")
    return mark


def _check_budget(weights: list[Weight], settings: Settings) -> None:
    """Raises ValueError if a weight is larger than the budget.

    (Embeddings are exempt: a forward may read only a few rows.)
    """
    if not isinstance(settings.budget, int):
        return
    for weight in sorted(weights, key=lambda weight: -weight.padded_nbytes):
        looked_up = all(isinstance(entry.module, nn.Embedding) for paged in weight.tensors for entry in paged.entries)
        if not looked_up and weight.padded_nbytes > settings.budget:
            raise ValueError(
                f"the budget of {readable(settings.budget)} is too small: {weight.name} alone needs "
                f"{readable(weight.padded_nbytes)}. Set at least that, or twice as much so that copies overlap with "
                "computing."
            )
