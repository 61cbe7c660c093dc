"""Properties of operations: repeatability, written arguments, and memory of results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memlab._paging.torch_private import (
    OpOverload,
    cudnn_allows_tf32,
    cudnn_is_deterministic,
    cudnn_is_enabled,
    cudnn_measures,
    float32_precision,
    may_return_view,
    mkldnn_is_enabled,
    writes_to,
)

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
# Attention draws random numbers for dropout only, whose probability is at this position.
_DROPOUT = {
    "_scaled_dot_product_flash_attention": 3,
    "_scaled_dot_product_flash_attention_for_cpu": 3,
    "_scaled_dot_product_efficient_attention": 5,
    "_scaled_dot_product_cudnn_attention": 5,
}
# The schemas of batch norms do not declare it, but these operations write to these arguments if the other one is true.
_BATCH_NORMS = frozenset({torch.ops.aten.native_batch_norm.default, torch.ops.aten.cudnn_batch_norm.default})
_STATISTICS, _TRAINING = (3, 4), 5
# These operations return a view, but their schemas do not declare it.
_SILENT_VIEWS = frozenset({"_unsafe_view", "_reshape_alias"})
# By `id`: hashing an operation costs a call. The value keeps it alive.
_TRAITS: dict[int, Traits] = {}


class Traits(NamedTuple):
    """Properties of an operation, whatever its arguments."""

    operation: Any
    #: Positions and names of the arguments that it writes to.
    written: list[tuple[int, str]]
    #: True if it writes to its arguments undeclared: collective communication.
    writes_silently: bool
    #: True if its results are no views: it has allocated or written their memory.
    makes_memory: bool
    #: True if the same arguments give the same results, and nothing changes except perhaps the first argument.
    is_repeatable: bool
    #: Position of the probability of dropout: if that is 0, it is repeatable as well.
    dropout: int | None


def traits_of(operation: Any) -> Traits:
    known = _TRAITS.get(id(operation))
    if known is None:
        is_known = isinstance(operation, OpOverload)
        name, overload = _name(operation) if is_known else ("", "")
        known = Traits(
            operation,
            written=writes_to(operation) if is_known else [],
            writes_silently=getattr(operation, "namespace", None) == "c10d",
            makes_memory=not is_known or not (name in _SILENT_VIEWS or may_return_view(operation)),
            is_repeatable=_is_repeatable(operation),
            dropout=_DROPOUT.get(name) if overload == "default" else None,
        )
        _TRAITS[id(operation)] = known
    return known


def is_repeatable(operation: Any, arguments: tuple[Any, ...] = ()) -> bool:
    """True if an operation with the same arguments returns the same results, and changes nothing except perhaps its first
    argument."""
    traits = traits_of(operation)
    if traits.dropout is not None and arguments:
        return len(arguments) <= traits.dropout or arguments[traits.dropout] == 0
    return traits.is_repeatable


def _is_repeatable(operation: Any) -> bool:
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


def numerics() -> tuple[Any, ...]:
    """The settings that rounding depends on."""
    settings = cudnn_is_enabled(), cudnn_is_deterministic(), cudnn_measures(), mkldnn_is_enabled()
    try:
        return *settings, float32_precision(), cudnn_allows_tf32()
    except RuntimeError:  # Settings made through newer names raise when read through these.
        return settings


def tensors_in(*values: Any) -> list[Tensor]:
    """The tensors among arguments of an operation, and in their lists."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(tensors_in(*value))
        elif isinstance(value, dict):
            found.extend(tensors_in(*value.values()))
    return found


def replaced(value: Any, kinds: Any, function: Callable[[Any], Any]) -> Any:
    """Arguments of an operation with `function` of those that are of some kinds."""
    if isinstance(value, kinds):
        return function(value)
    if isinstance(value, (list, tuple)):
        return type(value)([replaced(one, kinds, function) for one in value])
    if isinstance(value, dict):
        return {name: replaced(one, kinds, function) for name, one in value.items()}
    return value
