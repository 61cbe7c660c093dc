"""Lightning's Trainer with batches in pieces: one optimizer step with the gradients of a batch that does not fit."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from memlab._batches.batch import Batch
from memlab._batches.batchnorm import mixing_layers
from memlab._batches.logged_values import LoggedValues
from memlab._batches.model_loss import ModelLoss, loss_in
from memlab._batches.nested import Samples
from memlab._batches.observers import observing
from memlab._batches.parameter_hooks import held, once_for_all_pieces
from memlab._batches.ranks import Ranks
from memlab._batches.replay import Replay
from memlab._batches.strategies import PIECES, REPLAY, strategy_of
from memlab._batches.weighted import WeightedBackward

__all__ = ["big_batches_callback"]

Weight = Callable[[Any], Any]
_INSTEAD = (
    "If it compares samples, use memlab.big_batches_callback(loss='coupled'); if it is the mean of something else, pass "
    "their number (weight=)"
)


def big_batches_callback(
    micro_batch: int | None = None,
    *,
    loss: str = "mean",
    weight: Weight | None = None,
    memory: str | int = "auto",
    batchnorm: str = "refuse",
) -> Any:
    """Returns a callback of Lightning's Trainer that computes batches in pieces that fit the GPU.

        trainer = lightning.Trainer(callbacks=[memlab.big_batches_callback(micro_batch=8)])

    `training_step`, hooks, precision, gradient clipping and `accumulate_grad_batches` work as without it, and gradients are
    the same, to rounding. It supports one device and automatic optimization.

    Args:
        micro_batch: samples in a piece; None: as many as fit.
        loss: the kind of loss that `training_step` returns. ``"mean"``: a mean (or a sum) over samples. `training_step` is
            called with each piece. Its logged values are logged once for the batch, as means weighted like the loss.
            ``"coupled"``: a loss that compares samples. `training_step` is called once, and its ``self(…)`` goes through in
            pieces, which backward computes again.
        weight: computes the denominator of the mean from a batch, if it is not the number of samples, such as
            ``lambda batch: (batch["labels"] != -100).sum()``.
        memory: maximum GPU memory that the process may have allocated, as for `memlab.accumulate`.
        batchnorm: the mode of BatchNorm in training: ``"refuse"``, ``"frozen"`` or ``"ghost"``.

    Raises:
        ImportError: Lightning is not installed.
        ValueError: `loss` or `batchnorm` is none of these; `weight` is given with ``"coupled"``.
        RuntimeError: when training begins, with several devices, manual optimization or BatchNorm.

    >>> import memlab
    >>> callback = memlab.big_batches_callback(micro_batch=8)
    """
    if loss not in ("mean", "coupled"):
        raise ValueError(f'loss={loss!r}: must be "mean" or "coupled"')
    if loss == "coupled" and weight is not None:
        raise ValueError('weight needs loss="mean": a coupled loss uses all samples')
    if batchnorm not in ("refuse", "frozen", "ghost"):
        raise ValueError(f'batchnorm={batchnorm!r}: must be "refuse", "frozen" or "ghost"')
    is_old = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
    callback: Any = importlib.import_module("pytorch_lightning" if is_old else "lightning.pytorch").Callback

    class BigBatches(callback):  # type: ignore[misc]
        """Replaces `training_step` while a training runs."""

        def __init__(self) -> None:
            self._module: Any = None

        def on_train_start(self, trainer: Any, module: Any) -> None:
            _check(trainer, module)
            settings = _Settings(micro_batch, memory, batchnorm)
            step = _MeanStep(trainer, module, settings, weight) if loss == "mean" else _CoupledStep(module, settings)
            self._module = module
            module.training_step = functools.wraps(module.training_step)(step)

        def on_train_end(self, *_: Any) -> None:
            self._restore()

        def on_exception(self, *_: Any) -> None:
            self._restore()

        def _restore(self) -> None:
            if self._module is not None:
                del self._module.training_step
                self._module = None

    return BigBatches()


def _check(trainer: Any, module: Any) -> None:
    strategy = type(trainer.strategy)
    if all(kind.__name__ != "SingleDeviceStrategy" for kind in strategy.__mro__):
        raise RuntimeError(
            f"memlab.big_batches_callback supports one device, but this is a {strategy.__name__}, which averages gradients "
            "in its backward. Turn automatic optimization off, and call memlab.accumulate with the wrapped model"
        )
    if not module.automatic_optimization:
        raise RuntimeError(
            "this module uses manual optimization (automatic_optimization): call memlab.accumulate in training_step"
        )


class _Settings:
    def __init__(self, micro_batch: int | None, memory: str | int, batchnorm: str) -> None:
        self._micro_batch, self._memory, self._batchnorm = micro_batch, memory, batchnorm

    def batch(self, model: nn.Module, inputs: Any, *, is_mean: bool) -> Batch:
        batch = Batch.of(model, inputs, micro_batch=self._micro_batch, memory=self._memory, exact=True)
        if self._batchnorm == "refuse" and (layers := mixing_layers(model)):
            name, layer = next(iter(layers.items()))
            raise RuntimeError(
                f"micro-batches would not give the gradients of this batch: {name.removeprefix('module.')} is a "
                f"{type(layer).__name__} in training, which mixes all samples of a batch. batchnorm='frozen' keeps its "
                "statistics, 'ghost' uses those of each micro-batch. memlab.accumulate computes it exactly, in a "
                "training_step with manual optimization"
            )
        strategy = strategy_of(
            model,
            None,
            device=batch.device,
            in_pieces=True,
            exact=True,
            batchnorm=self._batchnorm,
            has_own_loop=not is_mean,
        )
        assert strategy.name == (PIECES if is_mean else REPLAY), "BatchNorm is not exact here"
        return strategy.prepared(batch)


class _Pieces(nn.Module):
    """A function of a piece, as a model with the parameters of a module."""

    def __init__(self, module: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.module = module
        self.function = function

    def forward(self, **piece: Any) -> Any:
        return self.function(**piece)


class _MeanStep:
    """`training_step` of a batch: forward and backward of its pieces. Backward of the returned loss adds their gradients,
    since Lightning zeroes gradients in between."""

    def __init__(self, trainer: Any, module: Any, settings: _Settings, weight: Weight | None) -> None:
        self._module, self._settings, self._weight = module, settings, weight
        self._scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._training_step, self._log = module.training_step, module.log
        self._model = _Pieces(module, self._piece)
        self._rest: Any = ((), {})
        self._logged = LoggedValues()

    def __call__(self, batch: Any, *rest: Any, **named: Any) -> Tensor:
        self._rest, self._logged = (rest, named), LoggedValues()
        made = self._settings.batch(self._model, {"batch": batch}, is_mean=True)
        targets = None if self._weight is None else Samples({"batch": batch})
        parameters = made.parameters
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        self._module.log = self._logged.log
        try:
            # (Tries the loss of a few samples, in the first batch: their logged values are dropped.)
            if self._weight is None:
                mean: ModelLoss | _Weighted = ModelLoss.of(self._model, made.samples, made.device, made.memory, _INSTEAD)
            else:
                mean = _Weighted(self._weight)
            with observing(lambda rows, samples: self._logged.keep()), held(parameters):
                loss = WeightedBackward(made, targets, mean).run(self._scaled)
            gradients = [parameter.grad for parameter in parameters]
        finally:
            del self._module.log
            for parameter, old in zip(parameters, before, strict=True):
                parameter.grad = old
        self._logged.log_to(self._log)
        return _Computed.apply(torch.empty(0, requires_grad=True), loss, functools.partial(self._add, parameters, gradients))  # type: ignore[no-any-return]

    def _piece(self, batch: Any) -> dict[str, Tensor]:
        rest, named = self._rest
        samples = Samples({"batch": batch})
        self._logged.begin(len(samples) if self._weight is None else self._weight(batch))
        result = self._training_step(batch, *rest, **named)
        if isinstance(result, dict) and result.keys() - {"loss"}:
            others = ", ".join(map(repr, result.keys() - {"loss"}))
            raise ValueError(
                f"training_step returns {others}, which micro-batches cannot compute for the whole batch: return the loss "
                "alone"
            )
        return {"loss": loss_in(result if isinstance(result, dict) else {"loss": result})}

    def _scaled(self, loss: Tensor) -> Tensor:
        return loss if self._scaler is None else self._scaler.scale(loss)  # type: ignore[no-any-return]

    def _add(self, parameters: list[Tensor], gradients: list[Tensor | None], gradient: Tensor) -> None:
        """Called in backward. `gradient` is the factor of the loss, which contains the scale of the pieces again."""
        factor = gradient / self._scaled(torch.ones((), device=gradient.device))
        with once_for_all_pieces(parameters, Ranks(self._module)):
            for parameter, added in zip(parameters, gradients, strict=True):
                if added is not None:
                    added.mul_(factor)
                    parameter.grad = added if parameter.grad is None else parameter.grad.add_(added)
        gradients[:] = [None] * len(gradients)


class _Weighted:
    """A mean with a denominator computed by a function."""

    is_sum = False

    def __init__(self, weight: Weight) -> None:
        self._weight = weight

    def weight(self, samples: int, piece: Any) -> Any:
        return self._weight(piece["batch"])

    def countable(self, piece: Any) -> Any:
        return piece

    def __call__(self, outputs: Any, piece: Any) -> Tensor:
        return loss_in(outputs)


class _CoupledStep:
    """`training_step`, with its calls of the module computed in pieces."""

    def __init__(self, module: Any, settings: _Settings) -> None:
        self._module, self._settings = module, settings
        self._training_step, self._forward = module.training_step, module.forward
        self._model = _Pieces(module, self._piece)
        self._has_called = False

    def __call__(self, *given: Any, **named: Any) -> Any:
        self._has_called = False
        self._module.forward = self._outputs
        try:
            result = self._training_step(*given, **named)
        finally:
            del self._module.forward
        if not self._has_called:
            raise RuntimeError(
                'training_step does not call self(…), which loss="coupled" runs in micro-batches: compute the outputs that '
                "the loss compares in forward"
            )
        return result

    def _outputs(self, *given: Any, **named: Any) -> Any:
        self._has_called = True
        return Replay(self._settings.batch(self._model, {"given": given, "named": named}, is_mean=False)).outputs()

    def _piece(self, given: Any, named: Any) -> Any:
        return self._forward(*given, **named)


class _Computed(torch.autograd.Function):
    """A loss whose gradients were computed already."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, loss: Tensor, add: Callable[[Tensor], None]) -> Tensor:
        ctx.add = add
        return loss.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, None]:
        ctx.add(*gradients)
        return None, None, None
