"""``memlab.accumulate``: forward and backward of a batch of any size, in the memory of one micro-batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from memlab._arguments import require_model
from memlab._batches.batch import Batch
from memlab._batches.criteria import Mean
from memlab._batches.lockstep import Lockstep
from memlab._batches.mixing import look_for_mixing
from memlab._batches.model_loss import ModelLoss, labels_of, loss_in
from memlab._batches.nested import Samples, is_stream
from memlab._batches.observers import keeper, note_strategy
from memlab._batches.parameter_hooks import once_for_all_pieces
from memlab._batches.ranks import Ranks
from memlab._batches.replay import Replay
from memlab._batches.strategies import LOCKSTEP, PIECES, REPLAY, WHOLE, strategy_of
from memlab._batches.streamed import StreamedMean, StreamedReplay, given_by
from memlab._batches.weighted import WeightedBackward
from memlab._batches.whole_batch import TooLargeAtOnce, WholeBatch

_Loss = Callable[..., Any]
_Scale = Callable[[Tensor], Tensor]

__all__ = ["accumulate"]


def accumulate(
    model: nn.Module,
    inputs: Any,
    loss_fn: Callable[..., Any] | None = None,
    *,
    targets: Any = None,
    micro_batch: int | None = None,
    memory: str | int = "auto",
    exact: bool = True,
    batchnorm: str = "exact",
    scaler: Any = None,
) -> Tensor:
    """Runs forward, loss and backward of a whole batch, in pieces (micro-batches) that fit into memory.

        loss = memlab.accumulate(model, images, nn.CrossEntropyLoss(), targets=labels)
        optimizer.step()
        optimizer.zero_grad()

    Gradients are those of the whole batch, to rounding. With a PyTorch criterion, which is a mean or a sum, each piece goes
    forward and backward once. Any other `loss_fn` may compare samples with each other. Then all pieces go forward without a
    graph, the loss is computed from all outputs, and each piece goes forward again and backward: a third more computation.

    Args:
        model: any module that computes samples independently. Ranks of DistributedDataParallel average once.
        inputs: the batch: a tensor, or tensors in a tuple, list or dictionary (``model(*inputs)``, ``model(**inputs)``),
            with samples in the first dimension of each. It may stay on the CPU: pieces are copied to the model's device. A
            tensor with another first dimension is passed to every piece. Or an iterable that gives the batch in pieces, such
            as a DataLoader or a generator (not a list or tuple): each piece is ``(inputs, targets)``, or only inputs without
            targets or `loss_fn`. Then the whole batch is never in memory. A loss that compares samples reads the iterable
            twice.
        loss_fn: a criterion of PyTorch, or any function of ``(outputs, targets)``; of ``(outputs)`` without targets.
            None: the model's own loss, which Hugging Face models, for example, return when given ``labels``.
        targets: as `inputs`. (For criteria of more arguments, tuples are passed entry by entry.)
        micro_batch: samples in a piece. None: as many as fit, found by measuring small pieces first.
        memory: maximum GPU memory that the process may have allocated, in bytes or as ``"20GiB"``; ``"auto"``: all free
            memory. A piece has at least one sample, whatever its size.
        exact: refuse a computation that would not give the gradients of the whole batch. False: do it nevertheless, and warn
            once.
        batchnorm: the mode of BatchNorm in training, which mixes all samples. ``"exact"``: the whole batch goes
            through at once, with activations off the GPU as far as they do not fit (`memlab.offload_activations`); with
            `micro_batch`, or if the batch does not fit, pieces run in threads that meet at each such layer.
            ``"ghost"``: each piece is normalised with its own statistics. ``"frozen"``: statistics do not change.
            ``"refuse"``: raise.
        scaler: a ``torch.amp.GradScaler`` that scales the loss for backward.

    Returns:
        The loss of the whole batch: a scalar without a graph, on the device where it was computed.

    Raises:
        RuntimeError: no strategy gives the gradients of the whole batch. Or an iterable gives its pieces only once, and the
            loss needs them twice.
        ValueError: the batch has no samples, or the number of targets differs; the model's own loss is no mean over
            samples or labels; targets are given beside an iterable.
        torch.OutOfMemoryError: a single sample does not fit.

    >>> import memlab, torch
    >>> model, images = torch.nn.Linear(4, 3), torch.randn(10, 4)
    >>> labels = torch.tensor([0, 1, 2, -100, 1, 0, 2, 2, -100, 1])
    >>> loss = memlab.accumulate(model, images, torch.nn.CrossEntropyLoss(), targets=labels, micro_batch=4)
    >>> whole = torch.nn.functional.cross_entropy(model(images), labels)
    >>> torch.testing.assert_close(loss, whole.detach())
    >>> torch.testing.assert_close(model.weight.grad, torch.autograd.grad(whole, model.weight)[0])
    >>> pieces = ((images[rows], labels[rows]) for rows in (slice(0, 7), slice(7, 10)))    # each may come from a disk
    >>> torch.testing.assert_close(memlab.accumulate(model, pieces, torch.nn.CrossEntropyLoss()), loss)
    """
    require_model("accumulate", model)
    if isinstance(loss_fn, type):
        raise TypeError(f"loss_fn={loss_fn.__name__} is a class: pass an instance, loss_fn={loss_fn.__name__}()")
    if not torch.is_grad_enabled():
        raise RuntimeError("gradients are off here (no_grad or inference_mode), but accumulate computes them")
    scale = (lambda loss: loss) if scaler is None else scaler.scale
    if is_stream(inputs):
        if targets is not None:
            raise ValueError("an iterable yields micro-batches (inputs, targets): leave targets out")
        make = partial(Batch.of, model, micro_batch=micro_batch, memory=memory, exact=exact)
        return _streamed(model, inputs, loss_fn, scale, make, exact=exact, batchnorm=batchnorm)
    target_samples = None if targets is None else Samples(targets)
    batch = Batch.of(model, inputs, micro_batch=micro_batch, memory=memory, exact=exact)
    if target_samples is not None and len(target_samples) != len(batch.samples):
        raise ValueError(
            f"{len(batch.samples)} samples, but {len(target_samples)} targets: the first dimension of both must be the "
            "batch. If the loss needs flat targets, flatten them in the loss: loss_fn=lambda outputs, targets: …"
        )
    # (Ranks may have different numbers of samples, but must choose the same strategy.)
    in_pieces = micro_batch is not None and (micro_batch < len(batch.samples) or batch.ranks.are_several)
    strategy = strategy_of(
        batch.ranks.model(),
        loss_fn,
        device=batch.device,
        in_pieces=in_pieces,
        exact=exact,
        batchnorm=batchnorm,
        samples=len(batch.samples),
    )
    if batch.ranks.are_in_step and strategy.name in (WHOLE, LOCKSTEP):
        raise RuntimeError(f"the model is sharded over ranks (fully_shard), and {strategy.reason}: use batchnorm='frozen'")
    if strategy.inexact is not None:
        warnings.warn(f"memlab, exact=False: {strategy.inexact}", stacklevel=2)
    note_strategy(strategy.name)
    # (A rank wrapper averages a gradient when autograd has reached its parameter, which is after its hooks.)
    with (
        nullcontext()
        if batch.ranks.are_several and strategy.name == WHOLE
        else once_for_all_pieces(batch.parameters, batch.ranks)
    ):
        return _RUN[strategy.name](strategy.prepared(batch), inputs, target_samples, loss_fn, scale)


def _streamed(
    model: nn.Module,
    pieces: Iterable[Any],
    loss_fn: _Loss | None,
    scale: _Scale,
    batch_of: Callable[[Any], Batch],
    *,
    exact: bool,
    batchnorm: str,
) -> Tensor:
    """Computes a batch that an iterable gives in pieces."""
    ranks = Ranks(model)
    if ranks.are_in_step:
        raise RuntimeError(
            "the model is sharded over ranks (fully_shard), which need equal numbers of micro-batches, but the length of an "
            "iterable is unknown: pass the batch as a whole"
        )
    inner = ranks.model()
    strategy = strategy_of(inner, loss_fn, device=torch.device("cpu"), in_pieces=True, exact=exact, batchnorm=batchnorm)
    if strategy.name in (WHOLE, LOCKSTEP) or strategy.batchnorm == "ghost":
        raise RuntimeError(
            f"micro-batches from an iterable would not give the gradients of the whole batch: {strategy.reason}. Pass the "
            "batch as a whole, or keep the statistics (batchnorm='frozen')"
        )
    if strategy.inexact is not None:
        warnings.warn(f"memlab, exact=False: {strategy.inexact}", stacklevel=3)
    prepared = lambda inputs: strategy.prepared(batch_of(inputs))  # noqa: E731
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if strategy.name == PIECES:
        mean = StreamedMean(given_by(pieces, have_targets=loss_fn is not None), prepared, loss_fn)
        with once_for_all_pieces(parameters, ranks):
            return mean.run(scale)
    if iter(pieces) is pieces:
        raise RuntimeError(
            f"{strategy.reason}, so the loss needs the micro-batches twice, but a {type(pieces).__name__} yields them once: "
            "pass an object whose __iter__ starts again, such as a DataLoader without shuffle (DataLoader(list_of_pieces, "
            "batch_size=None))"
        )
    replay = StreamedReplay(lambda: given_by(pieces, have_targets=True), prepared)
    assert loss_fn is not None, "the way was chosen for it"

    def loss_of(outputs: Any, targets: Any) -> Tensor:
        return _one_number(loss_fn(outputs) if targets is None else loss_fn(outputs, targets))

    with once_for_all_pieces(parameters, ranks):
        return replay.run(loss_of, scale)


def _in_pieces(batch: Batch, inputs: Any, targets: Samples | None, loss_fn: _Loss | None, scale: _Scale) -> Tensor:
    if loss_fn is None:
        if batch.ranks.are_in_step and batch.ranks.agreed(len(batch.samples), batch.device, most=False) < 2:
            raise ValueError("a rank has one sample, but memlab needs two to find the weights of the model's own loss")
        own, labels = ModelLoss.of(batch.ranks.model(), batch.samples, batch.device, batch.memory), labels_of(inputs)
        return WeightedBackward(batch, None if labels is None else Samples(labels), own).run(scale)
    mean = Mean.of(loss_fn)
    assert mean is not None, "the way was chosen for it"
    if (size := batch.sizing.size(len(batch.samples))) < len(batch.samples):
        look_for_mixing(batch, joins=False, size=size)
    return WeightedBackward(batch, targets, mean).run(scale)


def _by_replay(batch: Batch, _inputs: Any, targets: Samples | None, loss_fn: _Loss | None, scale: _Scale) -> Tensor:
    replay = Replay(batch)
    loss = _loss_of(batch, targets, loss_fn)(replay.outputs(later=True))
    replay.backward_of_loss(scale(loss))
    return loss.detach()


def _at_once(batch: Batch, _inputs: Any, targets: Samples | None, loss_fn: _Loss | None, scale: _Scale) -> Tensor:
    loss_of = _loss_of(batch, targets, loss_fn)
    try:
        return WholeBatch(batch).run(loss_of, scale)
    except TooLargeAtOnce:
        note_strategy(LOCKSTEP)
        return Lockstep(batch).run(loss_of, scale)


def _in_lockstep(batch: Batch, _inputs: Any, targets: Samples | None, loss_fn: _Loss | None, scale: _Scale) -> Tensor:
    return Lockstep(batch).run(_loss_of(batch, targets, loss_fn), scale)


def _loss_of(batch: Batch, targets: Samples | None, loss_fn: _Loss | None) -> Callable[[Any], Tensor]:
    """A function that computes the loss from the outputs of all samples."""

    mean = Mean.of(loss_fn)
    whole = None if targets is None else targets.piece(range(len(targets)), batch.device)
    # On several ranks: the factor of this rank's mean, so that the ranks' average is the mean of all samples.
    share: Tensor | float = 1.0
    if mean is not None and not mean.is_sum and batch.ranks.are_several:
        weight = mean.weight(len(batch.samples), whole)
        share = weight / batch.ranks.part_of_all(weight, batch.device)

    keep = keeper()

    def loss_of(outputs: Any) -> Tensor:
        if keep is not None:
            keep(range(len(batch.samples)), outputs)
        if loss_fn is None:
            loss = loss_in(outputs)
        elif mean is not None:
            loss = mean(outputs, whole)
            loss = loss if isinstance(share, float) else loss * share.to(loss.dtype)
        else:
            loss = loss_fn(outputs) if targets is None else loss_fn(outputs, whole)
        return _one_number(loss)

    return loss_of


def _one_number(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        raise ValueError(f"loss_fn returns {_described(loss)}: it must return a scalar tensor")
    return loss


def _described(loss: Any) -> str:
    return f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"


_RUN = {PIECES: _in_pieces, REPLAY: _by_replay, WHOLE: _at_once, LOCKSTEP: _in_lockstep}
