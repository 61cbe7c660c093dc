"""A block's batch in parts: while a block's weights are there, the batch goes through it piece by piece.

The weights come over the bus once for the whole batch, and only one piece's activations are in memory at a time, so that
a batch that hides the transfer does not need the memory of a large batch. Right for blocks that treat the samples of a
batch apart from each other (everything but BatchNorm in training).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten


def repeated_blocks(model: nn.Module) -> set[nn.Module]:
    """The outermost entries of the model's lists of modules: a transformer's blocks, a network's stages.

    Raises ValueError for a model without such lists.
    """
    blocks: set[nn.Module] = set()
    inner: set[nn.Module] = set()
    for module in model.modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and module not in inner:
            children = [child for child in module.children() if any(True for _ in child.parameters())]
            blocks.update(children)
            inner.update(part for child in children for part in child.modules())
    if not blocks:
        raise ValueError("micro_batch needs a model made of blocks: entries of an nn.ModuleList or nn.Sequential")
    return blocks


def in_micro_batches(forward: Callable[..., Any], size: int) -> Callable[..., Any]:
    """`forward` called for `size` samples at a time, its results joined."""

    def pieces(*args: Any, **kwargs: Any) -> Any:
        leaves, shape = tree_flatten((args, kwargs))
        batch = next((leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() > 0), 0)
        if batch <= size or torch.is_grad_enabled():
            return forward(*args, **kwargs)
        for leaf in leaves:
            if not isinstance(leaf, Tensor) and "Cache" in type(leaf).__name__:
                raise RuntimeError(
                    f"micro_batch cannot cut a {type(leaf).__name__} into pieces: call the model with use_cache=False, or "
                    "page it without micro_batch"
                )
        results = []
        for start in range(0, batch, size):
            piece = [_cut(leaf, batch, start, size) for leaf in leaves]
            its_args, its_kwargs = tree_unflatten(piece, shape)
            results.append(forward(*its_args, **its_kwargs))
        return _join(results, size)

    return pieces


def _cut(leaf: Any, batch: int, start: int, size: int) -> Any:
    if isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.shape[0] == batch:
        return leaf[start : start + size]
    return leaf


def _join(results: list[Any], size: int) -> Any:
    flat = [tree_flatten(result) for result in results]
    shape = flat[0][1]
    joined = []
    for pieces in zip(*(leaves for leaves, _ in flat), strict=True):
        if isinstance(pieces[0], Tensor) and pieces[0].dim() > 0 and pieces[0].shape[0] == size:
            joined.append(torch.cat(pieces))
        elif isinstance(pieces[0], Tensor):
            raise RuntimeError(
                f"micro_batch cannot join a result of shape {tuple(pieces[0].shape)}: its first dimension is not the batch"
            )
        else:
            joined.append(pieces[0])
    return tree_unflatten(joined, shape)
