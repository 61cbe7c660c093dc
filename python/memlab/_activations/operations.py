"""Properties of operations: repeatability, written arguments, and memory of results."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from memlab._paging.torch_private import OpOverload, may_return_view, writes_to

# Repeatable operations beside those that PyTorch marks as pointwise: products, norms, reductions, copies. Not included:
# operations that draw random numbers, and cumsum, whose rounding on CUDA depends on the order in which its threads finish.
# fmt: off
_NAMES = frozenset(
    {
        "mm", "addmm", "bmm", "baddbmm", "convolution", "native_layer_norm", "native_group_norm",
        "native_batch_norm", "cudnn_batch_norm", "_fused_rms_norm", "_softmax", "_log_softmax", "logsumexp", "cat",
        "stack", "clone", "_to_copy", "constant_pad_nd", "embedding", "gather", "index_select", "mean", "sum",
        "var", "var_mean", "amax", "amin", "linalg_vector_norm", "tril", "triu", "avg_pool2d",
        "_adaptive_avg_pool2d", "max_pool2d_with_indices", "upsample_nearest2d", "upsample_bilinear2d", "roll",
        "flip", "repeat", "slice_scatter", "select_scatter",
    }
)
# fmt: on
# The schemas of batch norms do not declare it, but these operations write to these arguments if the other one is true.
_BATCH_NORMS = frozenset({torch.ops.aten.native_batch_norm.default, torch.ops.aten.cudnn_batch_norm.default})
_STATISTICS, _TRAINING = (3, 4), 5
# These operations return a view, but their schemas do not declare it.
_SILENT_VIEWS = frozenset({"_unsafe_view", "_reshape_alias"})
_KNOWN: dict[Any, bool] = {}
_OWN: dict[Any, bool] = {}
_WRITTEN: dict[Any, list[tuple[int, str]]] = {}


def is_repeatable(operation: Any) -> bool:
    """True if an operation with the same arguments returns the same results, and changes nothing except perhaps its first
    argument."""
    known = _KNOWN.get(operation)
    if known is None:
        known = _KNOWN[operation] = _looked_up(operation)
    return known


def _looked_up(operation: Any) -> bool:
    if not isinstance(operation, OpOverload) or operation.namespace != "aten":
        return False
    name, overload = _name(operation)
    written = writes_to(operation)
    if written:
        if not name.endswith("_") or name.startswith("_") or [position for position, _ in written] != [0]:
            return False
        operation = getattr(getattr(torch.ops.aten, name[:-1], None), overload, None)
        # Excludes operations that do more than compute new values of their argument.
        if operation is None or torch.Tag.pointwise not in operation.tags or writes_to(operation):
            return False
    if torch.Tag.nondeterministic_seeded in operation.tags:
        return False
    return torch.Tag.pointwise in operation.tags or name in _NAMES


def _name(operation: OpOverload) -> tuple[str, str]:
    """The name of an operation and of its overload: ("add", "Tensor")."""
    name, _, overload = operation.name().partition("::")[2].partition(".")
    return name, overload or "default"


def scratch_arguments(operation: Any, arguments: tuple[Any, ...]) -> tuple[int, ...]:
    """Positions of arguments that an operation writes to undeclared: running statistics in training."""
    if operation not in _BATCH_NORMS or len(arguments) <= _TRAINING or not arguments[_TRAINING]:
        return ()
    return _STATISTICS


def written_arguments(operation: Any) -> list[tuple[int, str]]:
    """Positions and names of the arguments that an operation writes to."""
    known = _WRITTEN.get(operation)
    if known is None:
        known = _WRITTEN[operation] = writes_to(operation) if isinstance(operation, OpOverload) else []
    return known


def writes_silently(operation: Any) -> bool:
    """True if an operation writes to its arguments undeclared: collective communication."""
    return getattr(operation, "namespace", None) == "c10d"


def numerics() -> tuple[Any, ...]:
    """The settings that rounding depends on."""
    cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn
    precisions: tuple[Any, ...] = ()
    with contextlib.suppress(RuntimeError):  # Settings made through newer names raise when read through these.
        precisions = (torch.get_float32_matmul_precision(), cudnn.allow_tf32)
    return cudnn.enabled, cudnn.deterministic, cudnn.benchmark, mkldnn.enabled, *precisions


def makes_memory(operation: Any) -> bool:
    """True if the results of an operation are no views: it has allocated or written their memory."""
    known = _OWN.get(operation)
    if known is None:
        is_view = isinstance(operation, OpOverload) and (_name(operation)[0] in _SILENT_VIEWS or may_return_view(operation))
        known = _OWN[operation] = not is_view
    return known
