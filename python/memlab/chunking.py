"""``memlab.chunk``: the leading part of a model stays on the GPU, the rest runs on the CPU or is paged."""

from __future__ import annotations

from types import NoneType
from typing import TypeVar

import torch
from torch import nn

from memlab._arguments import require_model
from memlab._paging.chunked_model import ChunkedModel
from memlab._paging.collect import collect
from memlab._paging.device_memory import free_memory
from memlab._paging.paged_tensor import Weight
from memlab._paging.plan_state import PlanQueries
from memlab._paging.settings import device_of
from memlab._paging.sizes import bytes_of
from memlab._paging.start import refuse_patched
from memlab.paged_model import page
from memlab.plan import Plan

Model = TypeVar("Model", bound=nn.Module)


def chunk(
    model: Model,
    device: torch.device | str = "cuda",
    max_capacity: float | str | None = None,
    *,
    rest: str = "cpu",
) -> Model:
    """Keeps the part of a model that fits on the device, and runs the rest on the CPU, or pages it. Modifies the model.

    With ``rest="cpu"`` the largest leading part that fits, in the order of execution, is on the device; later parts run on
    the CPU. Activations are moved at the border, and cast where a layer needs it. The first forward, which runs on the CPU,
    learns the order. Results are moved to the device of the inputs. Objects of the caller that the first forward fills, such
    as a KV cache, are moved to the parts that computed them. The ``generate`` of transformers accepts inputs on any device.

    ``rest="page"`` is `memlab.page` with this budget: the rest is copied to the device and runs there. The resident parts
    are chosen for speed rather than from the beginning: residents spread over the model hide more copies.

    Args:
        model: any module.
        device: the device of its leading part, such as ``"cuda:1"``.
        max_capacity: a number of parameters, or device memory as ``"4GiB"``; None for the free memory.
        rest: ``"cpu"`` or ``"page"``.

    Returns: the model.

    Raises:
        RuntimeError: the model is paged or chunked already, or PyTorch finds no CUDA device.
        TypeError, ValueError: an argument is wrong; the message names valid ones.

    >>> import memlab, torch
    >>> model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    >>> model = memlab.chunk(model, "cpu", max_capacity=2 * 65 * 64)
    >>> with torch.no_grad():
    ...     model(torch.ones(2, 64)).shape
    torch.Size([2, 64])
    >>> model.memlab.resident_bytes  # Two layers of 64 x 64 float32 with their biases.
    33280
    """
    require_model("chunk", model)
    if rest not in ("cpu", "page"):
        raise ValueError(f'rest={rest!r}: must be "cpu" or "page"')
    if isinstance(max_capacity, bool) or not isinstance(max_capacity, (int, float, str, NoneType)):
        raise TypeError(f'max_capacity={max_capacity!r}: must be a number of parameters, a size such as "8GiB", or None')
    refuse_patched(model)
    where = device_of(device)
    weights, residents = collect(model)
    capacity = _capacity(weights, where, max_capacity)
    if rest == "page":
        for weight in weights:
            weight.tensors.clear()  # The pager would take these references for a user's, which may edit the weights.
        return page(model, where, budget=capacity)
    chunked = ChunkedModel(model, weights, residents, where, capacity)
    chunked.patch.mark(Plan(chunked.state, PlanQueries()), chunked.patch.release, where)
    return model


def _capacity(weights: list[Weight], device: torch.device, most: float | str | None) -> int:
    """Bytes that may stay on the device."""
    if isinstance(most, str):
        return bytes_of(most)
    nbytes = sum(weight.nbytes for weight in weights)
    if most is not None:
        if not 0 <= most < float("inf"):
            raise ValueError(f"max_capacity={most!r}: must be a number of parameters, 0 or more")
        return int(most * nbytes / max(sum(weight.parameters for weight in weights), 1))
    if device.type == "cpu":
        return nbytes
    return free_memory(device) * 8 // 10  # The rest is for activations of unknown size.
