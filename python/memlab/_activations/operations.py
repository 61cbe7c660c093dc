"""Which operations give the same again when they are given the same."""

from __future__ import annotations

from typing import Any

import torch

from memlab._paging.torch_private import OpOverload, may_return_view, writes_to

# Beside those that PyTorch marks as pointwise: products, norms, reductions, copies. Not those that draw random numbers.
# fmt: off
_NAMES = frozenset(
    {
        "mm", "addmm", "bmm", "baddbmm", "convolution", "native_layer_norm", "native_group_norm",
        "native_batch_norm", "cudnn_batch_norm", "_fused_rms_norm", "_softmax", "_log_softmax", "logsumexp", "cat",
        "stack", "clone", "_to_copy", "constant_pad_nd", "embedding", "gather", "index_select", "mean", "sum",
        "var", "var_mean", "amax", "amin", "linalg_vector_norm", "cumsum", "tril", "triu", "avg_pool2d",
        "_adaptive_avg_pool2d", "max_pool2d_with_indices", "upsample_nearest2d", "upsample_bilinear2d", "roll",
        "flip", "repeat", "slice_scatter", "select_scatter",
    }
)
# fmt: on
# Batch norms say nothing of it, but write to these arguments if the other one is true.
_STATISTICS, _TRAINING = (3, 4), 5
_KNOWN: dict[Any, Any] = {}
_VIEWS: dict[Any, bool] = {}
_WRITTEN: dict[Any, list[tuple[int, str]]] = {}


def repeated_form(operation: Any) -> Any:
    """The operation that returns the same as `operation` did, if it is given the same, and changes nothing: of one that
    writes to its argument, the one that does not. None: there is none."""
    if operation not in _KNOWN:
        _KNOWN[operation] = _looked_up(operation)
    return _KNOWN[operation]


def _looked_up(operation: Any) -> Any:
    if not isinstance(operation, OpOverload) or operation.namespace != "aten":
        return None
    if operation._schema.is_mutable:
        name = operation._opname
        if not name.endswith("_") or name.startswith("_") or [at for at, _ in writes_to(operation)] != [0]:
            return None
        operation = getattr(getattr(torch.ops.aten, name[:-1], None), operation._overloadname, None)
        # Not those that do more than to compute their argument's new values.
        if operation is None or torch.Tag.pointwise not in operation.tags or operation._schema.is_mutable:
            return None
    if torch.Tag.nondeterministic_seeded in operation.tags:
        return None
    return operation if torch.Tag.pointwise in operation.tags or operation._opname in _NAMES else None


def scratch_arguments(operation: Any, arguments: tuple[Any, ...]) -> tuple[int, ...]:
    """The positions of arguments that an operation writes to without saying so: running statistics in training."""
    is_batch_norm = isinstance(operation, OpOverload) and operation._opname in ("native_batch_norm", "cudnn_batch_norm")
    return _STATISTICS if is_batch_norm and len(arguments) > _TRAINING and arguments[_TRAINING] else ()


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
