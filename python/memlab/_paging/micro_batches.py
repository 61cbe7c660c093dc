"""Micro-batches: a batch goes through a block in pieces while the block's weights are loaded.

The weights are copied once for the whole batch, and only one piece's activations are in memory at a time. A batch large
enough to hide the copies therefore does not need a large batch's memory. Results are right for blocks that treat the samples
of a batch independently, as all do except BatchNorm in training.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from memlab._paging.torch_private import BatchNorm, tree_flatten, tree_unflatten

# Returns a context in which a block may run once more, or None if it need not be checked.
RerunScope = Callable[[], AbstractContextManager[None] | None]


def repeated_blocks(model: nn.Module) -> set[nn.Module]:
    """Returns the outermost entries of the model's lists of modules: a transformer's blocks, a network's stages.

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


def in_micro_batches(
    block: nn.Module, forward: Callable[..., Any], size: int, rerun_scope: RerunScope
) -> Callable[..., Any]:
    """Returns a function that calls `forward` for `size` samples at a time and joins its results.

    In the traced forward, `rerun_scope` returns a context in which the block runs once more. Raises ValueError if the whole
    batch and the pieces give different results.
    """

    def pieces(*args: Any, **kwargs: Any) -> Any:
        leaves, shape = tree_flatten((args, kwargs))
        batch = next((leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() > 0), 0)
        if batch <= size or torch.is_grad_enabled():
            return forward(*args, **kwargs)
        _refuse(block, leaves)
        context = rerun_scope()
        if context is not None:
            # The block may write to its inputs, count its calls, and draw random numbers.
            spare = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            devices = {leaf.device for leaf in leaves if isinstance(leaf, Tensor) and leaf.device.type == "cuda"}
            before = {name: buffer.clone() for name, buffer in block.named_buffers()}
            state = torch.random.get_rng_state()
            whole = forward(*args, **kwargs)
            written = {name: buffer.clone() for name, buffer in block.named_buffers()}
            with context, torch.random.fork_rng([device.index for device in devices]):
                torch.random.set_rng_state(state)
                _set_buffers(block, before)
                grown = tree_flatten((args, kwargs))[1] != shape
                same = not grown and _alike(in_pieces(spare, shape, batch), whole)
                _set_buffers(block, written)
            if not same:
                raise ValueError(
                    f"micro_batch: {type(block).__name__} does not give the same for {batch} samples at once as for {size} "
                    "at a time: an argument that is no batch is as long as one, or samples depend on each other. Page the "
                    "model without micro_batch"
                )
            return whole
        return in_pieces(leaves, shape, batch)

    def in_pieces(leaves: list[Any], shape: Any, batch: int) -> Any:
        results = []
        for start in range(0, batch, size):
            piece = [_cut(leaf, batch, start, size) for leaf in leaves]
            its_args, its_kwargs = tree_unflatten(piece, shape)
            results.append(forward(*its_args, **its_kwargs))
        return _join(results, size)

    return pieces


def _set_buffers(block: nn.Module, values: dict[str, Tensor]) -> None:
    for name, buffer in block.named_buffers():
        if name in values and values[name].shape == buffer.shape:
            buffer.copy_(values[name])


def _refuse(block: nn.Module, leaves: list[Any]) -> None:
    """Raises RuntimeError for inputs that pieces of a batch cannot share."""
    for leaf in leaves:
        if not isinstance(leaf, Tensor) and "Cache" in type(leaf).__name__:
            raise RuntimeError(
                f"micro_batch cannot cut a {type(leaf).__name__} into pieces: call the model with use_cache=False, or page "
                "it without micro_batch"
            )
    for module in block.modules():
        if module.training and isinstance(module, BatchNorm):
            raise RuntimeError("micro_batch: BatchNorm in training mixes the samples of a batch: call model.eval() first")


def _alike(one: Any, other: Any) -> bool:
    """Returns True if two results are equal except for rounding."""
    ours, shape = tree_flatten(one)
    theirs, other_shape = tree_flatten(other)
    if shape != other_shape:
        return False
    for a, b in zip(ours, theirs, strict=True):
        if not isinstance(a, Tensor):
            if type(a) is not type(b) or (isinstance(a, (int, float, str)) and a != b):
                return False
        elif a.shape != b.shape or a.dtype != b.dtype:
            return False
        elif a.numel() and a.is_floating_point():
            finite = a.isfinite()
            if not torch.equal(finite, b.isfinite()) or not torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num()):
                return False
            ours_finite, theirs_finite = a[finite].double(), b[finite].double()
            if not bool((ours_finite - theirs_finite).norm() <= 0.02 * theirs_finite.norm() + 1e-12):
                return False
        elif not torch.equal(a, b):
            return False
    return True


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
