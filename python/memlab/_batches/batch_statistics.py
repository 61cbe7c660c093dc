"""BatchNorm across the threads of a batch: each thread has a piece; the statistics are those of the whole batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from memlab._batches.first_order import first_order
from memlab._batches.microbatch_threads import Meeting, MicrobatchThread
from memlab._batches.state import Autocast
from memlab._paging.torch_private import BatchNorm

_PLAIN: Callable[..., Tensor] = functional.batch_norm
_LOCK = threading.Lock()
# Batches that are in lockstep now.
_USERS = 0
_HERE = threading.local()


@contextmanager
def meeting_at_batchnorm(model: nn.Module) -> Iterator[None]:
    """Makes threads meet at BatchNorm in training within the block, at every call of `torch.nn.functional.batch_norm`.

    Replaces the function rather than the modules, since subclasses may define their own forward, which does more.
    """
    global _USERS
    # The names distinguish layers and appear in messages.
    norms = [(name, module) for name, module in model.named_modules() if isinstance(module, BatchNorm)]
    hooks = [module.register_forward_pre_hook(partial(_enter, name or "the model")) for name, module in norms]
    with _LOCK:
        _USERS += 1
        functional.batch_norm = _batch_norm
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        with _LOCK:
            _USERS -= 1
            if _USERS == 0:
                functional.batch_norm = _PLAIN


def _enter(name: str, module: nn.Module, arguments: Any) -> None:
    _HERE.layer = name


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Replaces `torch.nn.functional.batch_norm`: in the threads of micro-batches it normalises over the whole batch."""
    thread = MicrobatchThread.current()
    if thread is None or not training:
        return _PLAIN(input, running_mean, running_var, weight, bias, training, momentum, eps)
    name = getattr(_HERE, "layer", None) or "a call of batch_norm"
    _HERE.layer = None
    merge = partial(_merged, running_mean, running_var, momentum)
    with Autocast.off():
        result: Tensor = _Normalized.apply(input, weight, bias, eps, thread, name, merge)
    return result


def _merged(
    running_mean: Tensor | None, running_var: Tensor | None, momentum: float, parts: list[tuple[int, Tensor, Tensor]]
) -> tuple[int, Tensor, Tensor]:
    """Merges the figures of pieces as Chan, Golub and LeVeque do: values in each channel, their mean and their variance.

    The figures of a piece have the sum of squares in place of the variance. Updates the running statistics once.
    """
    total = sum(count for count, _, _ in parts)
    if total == 1:
        raise ValueError("Expected more than 1 value per channel when training: the batch has one")
    with torch.no_grad(), Autocast.off():
        means = torch.stack([mean for _, mean, _ in parts]).double()
        squares = torch.stack([square for _, _, square in parts]).double()
        counts = _counts(tuple(count for count, _, _ in parts), means.device)
        mean = (means * counts).sum(0) / total
        square = squares.sum(0) + ((means - mean).square() * counts).sum(0)
        for running, value in ((running_mean, mean), (running_var, square / (total - 1))):
            if running is not None:
                running.copy_((1 - momentum) * running.double() + momentum * value)
        dtype = parts[0][1].dtype
        return total, mean.to(dtype), (square / total).to(dtype)


@lru_cache(maxsize=256)
def _counts(counts: tuple[int, ...], device: torch.device) -> Tensor:
    """Values in each piece, on a device. Cached, since copying them there again would wait for the GPU."""
    return torch.tensor(counts, dtype=torch.float64, device=device)[:, None]


def _added(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        one, other = (torch.stack(sums).sum(0) for sums in zip(*parts, strict=True))
    return one, other


class _Normalized(torch.autograd.Function):
    """Normalises a piece with the statistics of the whole batch. Meets once in forward and once in backward."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        thread: MicrobatchThread,
        name: str,
        merge: Callable[[list[Any]], Any],
    ) -> Tensor:
        dtype = torch.float64 if input.dtype == torch.float64 else torch.float32
        count = input.numel() // input.shape[1]
        variance, mean = torch.var_mean(input.to(dtype), _all_but_channels(input), correction=0)
        place = ("forward", name, input.shape[1])
        total, mean, variance = thread.meet(Meeting(place, name, (count, mean, variance * count), merge))
        ctx.save_for_backward(input, weight, mean, (variance + eps).rsqrt())
        ctx.total, ctx.thread, ctx.name = total, thread, name
        ctx.dtypes = [None if one is None else one.dtype for one in (weight, bias)]
        wide = [None if one is None else one.to(dtype) for one in (weight, bias)]
        return _PLAIN(input, mean, variance, *wide, False, 0.0, eps)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        # Read only once: a recomputed checkpoint frees its tensors after the first read.
        input, weight, mean, inverse = ctx.saved_tensors
        form, dims, dtype, kind = _form(input), _all_but_channels(input), mean.dtype, input.dtype
        normalised = (input - mean.view(form)).mul_(inverse.view(form))
        # Frees a tensor that was copied back from the host before the thread waits for the others.
        del input
        sums = gradient.to(dtype).sum(dims), (normalised * gradient).sum(dims)
        into_input = None
        if ctx.needs_input_grad[0]:
            place = ("backward", ctx.name, gradient.shape[1])
            meeting = Meeting(place, f"the backward of {ctx.name}", sums, _added)
            all_gradients, all_products = (one.div(ctx.total).view(form) for one in ctx.thread.meet(meeting))
            factor = inverse if weight is None else inverse * weight.to(dtype)
            normalised.mul_(-all_products).add_(gradient).sub_(all_gradients).mul_(factor.view(form))
            into_input = normalised.to(kind)
        # Gradients of the parameters are those of the piece: autograd adds them up.
        into_bias, into_weight = (
            None if one is None else total.to(one) for total, one in zip(sums, reversed(ctx.dtypes), strict=True)
        )
        return into_input, into_weight, into_bias, None, None, None, None


def _form(input: Tensor) -> list[int]:
    return [1, -1, *[1] * (input.dim() - 2)]


def _all_but_channels(input: Tensor) -> list[int]:
    return [dim for dim in range(input.dim()) if dim != 1]
