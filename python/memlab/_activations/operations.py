"""Which operations give the same again when they are given the same."""

from __future__ import annotations

from typing import Any

import torch

from memlab._paging.torch_private import OpOverload, may_return_view, writes_to

# Beside those that PyTorch marks as pointwise: products, norms, reductions, copies. Not those that draw random numbers, and
# not batch norms, which write to their running statistics without saying so.
# fmt: off
_NAMES = frozenset(
    {
        "mm", "addmm", "bmm", "baddbmm", "convolution", "native_layer_norm", "native_group_norm",
        "_fused_rms_norm", "_softmax", "_log_softmax", "logsumexp", "cat", "stack", "clone", "_to_copy",
        "constant_pad_nd", "embedding", "gather", "index_select", "mean", "sum", "var", "var_mean", "amax", "amin",
        "linalg_vector_norm", "cumsum", "tril", "triu", "avg_pool2d", "_adaptive_avg_pool2d",
        "max_pool2d_with_indices", "upsample_nearest2d", "upsample_bilinear2d", "roll", "flip", "repeat",
        "slice_scatter", "select_scatter",
    }
)
# fmt: on
_KNOWN: dict[Any, bool] = {}
_VIEWS: dict[Any, bool] = {}
_WRITTEN: dict[Any, list[tuple[int, str]]] = {}


def is_repeatable(operation: Any) -> bool:
    """Whether an operation, called with the same arguments once more, returns the same and changes nothing."""
    known = _KNOWN.get(operation)
    if known is None:
        known = _KNOWN[operation] = _looked_up(operation)
    return known


def _looked_up(operation: Any) -> bool:
    if not isinstance(operation, OpOverload) or operation.namespace != "aten" or operation._schema.is_mutable:
        return False
    if torch.Tag.nondeterministic_seeded in operation.tags:
        return False
    return torch.Tag.pointwise in operation.tags or operation._opname in _NAMES


def written_arguments(operation: Any) -> list[tuple[int, str]]:
    """Positions and names of the arguments that an operation writes to."""
    known = _WRITTEN.get(operation)
    if known is None:
        known = _WRITTEN[operation] = writes_to(operation) if isinstance(operation, OpOverload) else []
    return known


def makes_memory(operation: Any) -> bool:
    """Whether results of an operation have memory of their own, or the operation has written to it: no views."""
    known = _VIEWS.get(operation)
    if known is None:
        is_view = isinstance(operation, OpOverload) and (
            operation._opname in ("_unsafe_view", "_reshape_alias") or may_return_view(operation)
        )
        known = _VIEWS[operation] = not is_view
    return known
