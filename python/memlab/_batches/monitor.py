"""Checks the order of a training's steps: forward, loss, backward, step, zero_grad."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from memlab._paging.torch_private import tree_flatten, versions_of
from memlab._paging.warn import warn
from memlab.training_warnings import (
    GradientsNotZeroed,
    LossFromDetachedOutputs,
    ParametersWithoutGradient,
    StepWithoutBackward,
    TrainingInEvalMode,
    TrainingWarning,
)

#: Raise an error; warn once; do not check.
LEVELS = ("strict", "default", "quiet")


class Monitor:
    """Follows each step, from the outputs of a forward to the optimizer's step.

    Hooks on the outputs detect backward, and hooks on the optimizer detect its step. The first gradient shows if gradients
    were zeroed: it is then another tensor, or has another version.
    """

    def __init__(self, level: str) -> None:
        self.level = level
        self._hooks: list[Any] = []
        self.reset(None, None)

    @property
    def level(self) -> str:
        """The reaction to a training that leaves something out: one of `LEVELS`."""
        return self._level

    @level.setter
    def level(self, level: str) -> None:
        if level not in LEVELS:
            raise ValueError(f"{level!r} is not a level of warnings: must be one of {', '.join(map(repr, LEVELS))}")
        self._level = level

    def reset(self, model: Any, optimizer: Any) -> None:
        """Begins anew for another model, optimizer or criterion: each warning may be issued again."""
        for hook in self._hooks:
            hook.remove()
        self._model = model
        self._said: set[type[TrainingWarning]] = set()
        self._has_stepped = False
        self._used: tuple[weakref.ref[Tensor], int] | None = None
        self._begin_step()
        self._hooks = _hooks_on(optimizer, self)

    def forward(self, outputs: Any) -> None:
        """Called with the outputs of a batch."""
        if self._level == "quiet" or not torch.is_grad_enabled():
            return
        is_training = self._model.training
        for leaf in tree_flatten(outputs)[0]:
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                self._has_outputs = True
                leaf.register_hook(lambda _gradient: self._backward(is_training))

    def loss(self, loss: Tensor) -> None:
        """Called with the loss of the last outputs."""
        if self._has_outputs and torch.is_grad_enabled() and not loss.requires_grad:
            self._say(LossFromDetachedOutputs())

    def gradients(self) -> None:
        """Called when memlab has computed the gradients of a batch."""
        self._was_reached = True

    def before_step(self) -> None:
        """Called before the optimizer steps."""
        if self._level == "quiet" or not isinstance(self._model, nn.Module):
            return
        gradient = self._gradient()
        if not self._was_reached:
            if gradient is None or self._is_used(gradient):
                self._say(StepWithoutBackward())
            elif self._has_outputs:
                self._say(LossFromDetachedOutputs())
        if gradient is not None and not self._has_stepped:
            named = self._model.named_parameters()
            missing = [name for name, parameter in named if parameter.requires_grad and parameter.grad is None]
            if missing:
                self._say(ParametersWithoutGradient(missing))

    def after_step(self) -> None:
        """Called after the optimizer has stepped."""
        self._begin_step()
        self._has_stepped = True
        gradient = self._gradient()
        self._used = None if gradient is None else (weakref.ref(gradient), versions_of([gradient])[0])

    def step(self, optimizer: Any) -> None:
        """Lets an optimizer step. Calls `before_step` and `after_step` directly for optimizers that are not PyTorch's."""
        if self._hooks:
            optimizer.step()
            return
        self.before_step()
        optimizer.step()
        self.after_step()

    def _begin_step(self) -> None:
        self._has_outputs = False
        self._was_reached = False

    def _backward(self, is_training: bool) -> None:
        """Called when a backward reaches the outputs, before it adds to the model's gradients."""
        if not self._was_reached:
            gradient = self._gradient()
            if gradient is not None and self._is_used(gradient):
                self._say(GradientsNotZeroed())
        self._was_reached = True
        if not is_training:
            self._say(TrainingInEvalMode())

    def _gradient(self) -> Tensor | None:
        """The first gradient among the model's parameters, or None."""
        if not isinstance(self._model, nn.Module):
            return None
        return next((one.grad for one in self._model.parameters() if one.grad is not None), None)

    def _is_used(self, gradient: Tensor) -> bool:
        """True if the last step has used the gradient and it has not changed since."""
        if self._used is None:
            return False
        used, version = self._used
        return gradient is used() and versions_of([gradient])[0] == version

    def _say(self, warning: TrainingWarning) -> None:
        if self._level == "strict":
            raise warning
        if self._level == "default" and type(warning) not in self._said:
            self._said.add(type(warning))
            warn(warning)


def _hooks_on(optimizer: Any, monitor: Monitor) -> list[Any]:
    """Registers hooks on a PyTorch optimizer. They do not keep the monitor alive."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return []
    watching = weakref.ref(monitor)

    def before(_optimizer: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
        # A closure computes the gradients within the step. (The first argument is the optimizer.)
        if (found := watching()) is not None and not [one for one in [*arguments, *named.values()] if callable(one)]:
            found.before_step()

    def after(*_: Any) -> None:
        if (found := watching()) is not None:
            found.after_step()

    return [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]
