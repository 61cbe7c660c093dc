"""``memlab.accumulate``: forward and backward of a batch of any size, in the memory of a small one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from memlab import _native
from memlab._arguments import require_model
from memlab._batches.looking import Way, choose, refuse_unsupported, why_not_in_pieces
from memlab._batches.nested import Samples
from memlab._batches.replay import Replay
from memlab._batches.sizing import FixedSize, MeasuredSize, Sizing
from memlab._batches.weighted import WeightedBackward

__all__ = ["accumulate"]

# What was measured of a model's pieces, by the model, and then by the memory they may take and the form of a sample.
_MEASURED: WeakKeyDictionary[nn.Module, dict[Any, MeasuredSize]] = WeakKeyDictionary()


def accumulate(
    model: nn.Module,
    inputs: Any,
    loss_fn: Callable[..., Any],
    *,
    targets: Any = None,
    micro_batch: int | None = None,
    memory: str | int = "auto",
    exact: bool = True,
    scaler: Any = None,
) -> Tensor:
    """Forward, loss and backward of a whole batch, in pieces that fit the memory.

        loss = memlab.accumulate(model, images, nn.CrossEntropyLoss(), targets=labels)
        optimizer.step()
        optimizer.zero_grad()

    Gradients are those of the whole batch, to rounding. For PyTorch's criteria, which are means or sums, each piece goes
    forward and backward once. For any other `loss_fn`, which may compare samples with each other, all pieces go forward
    without a graph, the loss is computed from all outputs, and each piece goes forward again and backward: a third more
    computation.

    Args:
        model: any module whose samples do not depend on each other.
        inputs: the batch: a tensor, or tensors in a tuple, list or dictionary (``model(*inputs)``, ``model(**inputs)``),
            samples in the first dimension of each. It may stay on the CPU: pieces are copied to the model's device. A tensor
            with another first dimension is given to every piece.
        loss_fn: a criterion of PyTorch, or any function of ``(outputs, targets)``; of ``(outputs)`` if there are no targets.
        targets: as `inputs`. (Criteria of more arguments are given the entries of tuples one by one.)
        micro_batch: samples in a piece. None: as many as fit, found by measuring small pieces first.
        memory: how much GPU memory the process may have allocated, in bytes or as ``"20GiB"``; ``"auto"``: all that is free.
        exact: refuse what would not give the gradients of the whole batch. False: do it nevertheless, and warn once.
        scaler: a ``torch.amp.GradScaler`` that scales the loss for backward.

    Returns:
        The loss of the whole batch: a scalar without a graph, on the device where it was computed.

    Raises:
        RuntimeError: pieces would not give the gradients of the whole batch (BatchNorm in training).
        ValueError: there are no samples, or the targets are not as many as these.
        torch.OutOfMemoryError: a single sample does not fit.

    >>> import memlab, torch
    >>> model, images = torch.nn.Linear(4, 3), torch.randn(10, 4)
    >>> labels = torch.tensor([0, 1, 2, -100, 1, 0, 2, 2, -100, 1])
    >>> loss = memlab.accumulate(model, images, torch.nn.CrossEntropyLoss(), targets=labels, micro_batch=4)
    >>> whole = torch.nn.functional.cross_entropy(model(images), labels)
    >>> torch.testing.assert_close(loss, whole.detach())
    >>> torch.testing.assert_close(model.weight.grad, torch.autograd.grad(whole, model.weight)[0])
    """
    require_model("accumulate", model)
    if micro_batch is not None and micro_batch < 1:
        raise ValueError(f"micro_batch={micro_batch}: must be 1 or more")
    refuse_unsupported(model)
    samples, target_samples = Samples(inputs), None if targets is None else Samples(targets)
    if len(samples) == 0:
        raise ValueError("the batch has no samples")
    if target_samples is not None and len(target_samples) != len(samples):
        raise ValueError(
            f"{len(samples)} samples, but {len(target_samples)} targets: the first dimension of both must be the batch. If "
            "targets are flattened, flatten them in the loss instead: loss_fn=lambda outputs, targets: …"
        )
    device = _device_of(model, samples)
    sizing = _sizing(model, samples, device, micro_batch, memory)
    is_whole = isinstance(sizing, FixedSize) and sizing.size(len(samples)) == len(samples)
    refuse = _refusal(model, exact, is_whole)
    scale = (lambda loss: loss) if scaler is None else scaler.scale
    choice = choose(loss_fn)
    if choice.way is Way.MICRO_BATCHES and choice.mean is not None:
        return WeightedBackward(model, samples, target_samples, choice.mean, device).run(sizing, scale, refuse)
    outputs = Replay(model, samples, device, sizing, refuse).outputs()
    loss = (
        loss_fn(outputs) if target_samples is None else loss_fn(outputs, target_samples.piece(range(len(samples)), device))
    )
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        raise ValueError(f"loss_fn returns {_described(loss)}: it must return a tensor that is one number")
    scale(loss).backward()
    return loss.detach()


def _described(loss: Any) -> str:
    return f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"


def _device_of(model: nn.Module, samples: Samples) -> torch.device:
    """Where the model computes: where its first parameter is."""
    parameter = next(model.parameters(), None)
    if parameter is not None:
        return parameter.device
    return next(leaf.device for leaf in samples.leaves if isinstance(leaf, Tensor))


def _sizing(model: nn.Module, samples: Samples, device: torch.device, micro_batch: int | None, memory: str | int) -> Sizing:
    if micro_batch is not None:
        return FixedSize(micro_batch)
    if device.type != "cuda":
        return FixedSize(len(samples))
    size = None if memory == "auto" else _native.parse_size(memory) if isinstance(memory, str) else memory
    form = [(leaf.shape[1:], leaf.dtype) for leaf in samples.leaves if isinstance(leaf, Tensor)]
    key = (size, str(form), model.training)
    known = _MEASURED.setdefault(model, {})
    if key not in known:
        known[key] = MeasuredSize(model, device, size)
    return known[key]


def _refusal(model: nn.Module, exact: bool, is_whole: bool) -> Callable[[str], None] | None:
    """What to do with buffers that depend on the samples. Raises RuntimeError for a model that pieces are wrong for."""
    why = None if is_whole else why_not_in_pieces(model)
    if why is not None and exact:
        raise RuntimeError(f"memlab.accumulate: {why}")
    if not exact:
        if why is not None:
            warnings.warn(f"memlab.accumulate, exact=False: {why}", stacklevel=3)
        return None

    def refuse(buffer: str) -> None:
        raise RuntimeError(
            f"memlab.accumulate: the buffer {buffer} depends on the samples of a batch, and pieces would leave something "
            "else in it than the whole batch. Allow that with exact=False"
        )

    return refuse
