"""The recorded steps of a training."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from memlab._inspection.batches import mapped, tensors_in, with_length, with_rows

#: Optimizers by name, with PyTorch's classes.
OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD", "adafactor": "Adafactor"}


@dataclass
class Training:
    """The training that `memlab.inspect` was given."""

    model: torch.nn.Module
    batch: Any
    batch_dim: int
    length_dim: int
    loss: Callable[[Any, Any], torch.Tensor] | None
    optimizer: str | Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] | None
    amp: torch.dtype | None
    accumulate: int
    steps: int

    def run(self, rows: int, length: int | None = None) -> None:
        """Runs the steps on the current device with batches of this many rows. `length`: None: that of the example."""
        for module in self.model.modules():
            if isinstance(module, torch.nn.RNNBase):
                module.flatten_parameters()  # As `cuda()` does.
        batch = with_rows(self.batch, self.batch_dim, rows)
        if length is not None:
            batch = with_length(batch, self.length_dim, length)
        if self.optimizer is None:
            self._infer(batch)
        else:
            self._train(batch, self._optimizer())

    def _train(self, host_batch: Any, optimizer: torch.optim.Optimizer) -> None:
        model = self.model if self.model.training else self.model.train()
        scaler = torch.amp.GradScaler("cuda", enabled=self.amp is torch.float16)
        for _ in range(self.steps):
            optimizer.zero_grad()
            for _ in range(self.accumulate):
                batch = on_device(host_batch)
                with self._autocast():
                    outputs = forward(model, batch)
                    loss = self._loss(outputs, batch) / self.accumulate
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    def _infer(self, host_batch: Any) -> None:
        model = self.model.eval()
        # Optimizer steps divide a recording into steps. This optimizer has nothing on the device.
        ends = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
        with torch.no_grad():
            for _ in range(self.steps):
                batch = on_device(host_batch)
                with self._autocast():
                    outputs = forward(model, batch)  # noqa: F841 - a program keeps them until the next step.
                ends.step()

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast("cuda", self.amp) if self.amp is not None else contextlib.nullcontext()

    def _optimizer(self) -> torch.optim.Optimizer:
        if not isinstance(self.optimizer, str):
            assert self.optimizer is not None
            return self.optimizer(self.model.parameters())
        of_name: Callable[..., torch.optim.Optimizer] = getattr(torch.optim, OPTIMIZERS[self.optimizer])
        return of_name(self.model.parameters(), lr=1e-3)

    def _loss(self, outputs: Any, batch: Any) -> torch.Tensor:
        if self.loss is not None:
            return self.loss(outputs, batch)
        own = getattr(outputs, "loss", None)
        if isinstance(own, torch.Tensor):
            return own
        floating = [tensor.sum() for tensor in tensors_in(outputs) if tensor.is_floating_point()]
        if not floating:
            raise TypeError(f"the model returns {type(outputs).__name__} without a floating-point tensor: pass loss=")
        return sum(floating[1:], floating[0])


def on_device(batch: Any) -> Any:
    """The batch on the current device, as a training loop moves it."""
    return mapped(batch, lambda tensor: tensor.to("cuda"))


def forward(model: torch.nn.Module, batch: Any) -> Any:
    """Calls the model with the parts of a batch that it accepts: of a dict the entries with a parameter of that name; of a
    tuple or list all entries, or the first if the model does not accept that many."""
    if isinstance(batch, Mapping):
        names = inspect.signature(model.forward).parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values())
        return model(**{name: value for name, value in batch.items() if takes_any or name in names})
    if isinstance(batch, (list, tuple)):
        try:
            inspect.signature(model.forward).bind(*batch)
        except TypeError:
            return model(batch[0])
        return model(*batch)
    return model(batch)
