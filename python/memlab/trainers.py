"""memlab's batches in other trainers: Hugging Face's Trainer, and Lightning's."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from memlab.accumulation import accumulate
from memlab.activations import offload_activations

__all__ = ["BigBatches", "offload_callback"]


class BigBatches:
    """A base class to put before ``transformers.Trainer``: batches are computed in pieces that fit the GPU.

        class Trainer(memlab.BigBatches, transformers.Trainer):
            pass

        trainer = Trainer(model, TrainingArguments(..., per_device_train_batch_size=512), train_dataset=…)
        trainer.micro_batch = 8    # or leave it out: as many samples as fit

    Losses and gradients are those of the Trainer alone (`num_items_in_batch`, your own `compute_loss`, label
    smoothing, gradient accumulation, fp16), to rounding. See `memlab.accumulate` for the losses that pieces support.

    Attributes:
        micro_batch: samples in a piece; None: as many as fit.
        memory: maximum GPU memory that the process may have allocated, as for `memlab.accumulate`.

    Raises:
        RuntimeError: when a step begins, with DeepSpeed or FSDP; with several processes without `micro_batch`, since all of
            them need equally many pieces.

    >>> import memlab
    >>> class Trainer:  # In place of transformers.Trainer.
    ...     def training_step(self, model, inputs, num_items_in_batch=None): ...
    >>> class MyTrainer(memlab.BigBatches, Trainer):
    ...     micro_batch = 8
    >>> MyTrainer().memory
    'auto'
    """

    micro_batch: int | None = None
    memory: str | int = "auto"
    _losses: _Losses | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in cls.__mro__[1:]:
            if base is BigBatches:
                break
            if "training_step" in vars(base) and not issubclass(base, BigBatches):
                raise TypeError(f"{cls.__name__}: put memlab.BigBatches before {base.__name__} in its bases")

    if TYPE_CHECKING:
        # Attributes of transformers.Trainer.
        accelerator: Any
        args: Any
        model_accepts_loss_kwargs: bool
        compute_loss_func: Any
        compute_loss: Any
        compute_loss_context_manager: Any

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Runs forward and backward of a batch, as the Trainer expects it."""
        self._check()
        model.train()
        if self._losses is None or self._losses.model is not model:
            self._losses = _Losses(self, model)
        self._losses.num_items_in_batch = num_items_in_batch
        is_scaled = getattr(self, "loss_is_scaled_for_ga", None)
        if is_scaled is None:
            is_scaled = (self.model_accepts_loss_kwargs and num_items_in_batch is not None) or self.compute_loss_func
        steps = getattr(self, "current_gradient_accumulation_steps", self.args.gradient_accumulation_steps)
        scaled = _Scaled(1.0 if is_scaled else 1.0 / steps, getattr(self.accelerator, "scaler", None))
        loss = accumulate(self._losses, inputs, micro_batch=self.micro_batch, memory=self.memory, scaler=scaled)
        return loss * scaled.share

    def _check(self) -> None:
        kind = str(getattr(self.accelerator.distributed_type, "value", self.accelerator.distributed_type))
        if kind in ("DEEPSPEED", "FSDP", "MEGATRON_LM"):
            raise RuntimeError(f"memlab.BigBatches does not support {kind}, which has its own backward")
        if self.accelerator.num_processes > 1 and self.micro_batch is None:
            raise RuntimeError("memlab.BigBatches on several processes: set micro_batch, to the same value in all")


class _Losses(nn.Module):
    """A Trainer's losses of pieces, as the outputs of a model."""

    def __init__(self, trainer: BigBatches, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        # Not a module attribute, which would be searched for parameters.
        self.__dict__["trainer"] = trainer
        self.num_items_in_batch: Any = None

    def forward(self, **inputs: Any) -> dict[str, Tensor]:
        trainer = self.__dict__["trainer"]
        with trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(self.model, inputs, num_items_in_batch=self.num_items_in_batch)
        return {"loss": loss}


class _Scaled:
    """The factors that `accelerator.backward` applies to a loss: a share, and a GradScaler if one is in use."""

    def __init__(self, share: float, scaler: Any) -> None:
        self.share = share
        self._scaler = scaler

    def scale(self, loss: Tensor) -> Tensor:
        loss = loss * self.share
        return loss if self._scaler is None else self._scaler.scale(loss)  # type: ignore[no-any-return]


def offload_callback(budget: str | int, *, recompute: bool = True, device: torch.device | str | None = None) -> Any:
    """Returns a callback of Lightning's Trainer that limits the GPU memory of tensors saved by autograd to a budget.

        trainer = lightning.Trainer(callbacks=[memlab.offload_callback("8GiB")])

    Each `training_step` runs in `memlab.offload_activations`, with the same arguments.

    Raises:
        ImportError: Lightning is not installed.
        ValueError: the budget is no size.

    >>> import memlab
    >>> callback = memlab.offload_callback("1GiB", device="cpu")
    """
    is_old = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
    callback: Any = importlib.import_module("pytorch_lightning" if is_old else "lightning.pytorch").Callback

    class OffloadActivations(callback):  # type: ignore[misc]
        """Opens a block for each forward in training, and closes it before backward."""

        def __init__(self) -> None:
            self._block = offload_activations(budget, recompute=recompute, device=device)
            self._is_open = False

        def _open(self) -> None:
            self._close()
            self._block.__enter__()
            self._is_open = True

        def _close(self) -> None:
            if self._is_open:
                self._is_open = False
                self._block.__exit__(None, None, None)

        def on_train_batch_start(self, *_: Any) -> None:
            self._open()

        def on_before_backward(self, *_: Any) -> None:
            self._close()

        def on_after_backward(self, *_: Any) -> None:
            # With manual optimization another forward may follow.
            self._open()

        def on_train_batch_end(self, *_: Any) -> None:
            self._close()

        def on_exception(self, *_: Any) -> None:
            self._close()

    return OffloadActivations()
