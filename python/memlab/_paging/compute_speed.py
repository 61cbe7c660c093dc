"""Compute cost of operations, in floating-point operations of matrix products, and the speed of a device."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from memlab._paging.torch_private import EMBEDDINGS

_SIDE = 1024  # Side of the matrices whose product is timed.


Formulas = Mapping[Any, Callable[..., Any]]


def formulas() -> Formulas:
    """Returns PyTorch's FLOP formulas, by operation."""
    # Imported here, because it imports Triton and many other modules that a model on one device does not need.
    from torch.utils.flop_counter import flop_registry

    return flop_registry


def operations_of(
    known: Formulas, func: Any, args: Any, kwargs: dict[str, Any], result: Any, weights: list[Tensor], inputs: list[Tensor]
) -> int:
    """Returns the FLOP of matrix products, convolutions and attention; 0 for other operations, which take little time.

    A fused operation has no formula in PyTorch. It counts as a product of the rows of the first input with each of the
    weights.
    """
    formula = known.get(getattr(func, "overloadpacket", None))
    if formula is None:
        if func in EMBEDDINGS or not inputs or inputs[0].dim() == 0:
            return 0
        rows = inputs[0].numel() // max(inputs[0].shape[-1], 1)
        return sum(2 * weight.numel() * rows for weight in weights if weight.dim() > 1)
    try:
        return int(formula(*args, **kwargs, out_val=result))
    except Exception:  # Formulas assert shapes, and an estimate must not fail a forward of the program.
        return 0


@torch.no_grad()
@torch.inference_mode(False)
def operations_per_second(device: torch.device, dtype: torch.dtype) -> float:
    """Measures the speed with a product of two matrices."""
    one = torch.zeros(_SIDE, _SIDE, device=device, dtype=dtype if dtype.is_floating_point else torch.float32)
    best = min(_product_ns(one, device) for _ in range(3))
    return 2 * _SIDE**3 / best * 1e9


def _product_ns(matrix: Tensor, device: torch.device) -> float:
    if device.type == "cpu":
        began = time.perf_counter_ns()
        torch.mm(matrix, matrix)
        return max(time.perf_counter_ns() - began, 1)
    with torch.cuda.device(device):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        torch.mm(matrix, matrix)
        last.record()
        last.synchronize()
        return max(first.elapsed_time(last) * 1e6, 1.0)
