"""Watches the order of a training's steps: forward, loss, backward, step, zero_grad."""

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

#: Raise; warn once; do not look.
LEVELS = ("strict", "default", "quiet")


class Monitor:
    """Follows one step after the other, from the outputs of a forward to the optimizer's step.

    Backward is seen by hooks on the outputs, the step by the optimizer's. Whether gradients were zeroed is seen by the first
    gradient itself: it is another tensor then, or another version.
    """

    def __init__(self, level: str) -> None:
        self.level = level
        self._hooks: list[Any] = []
        self.reset(None, None)

    @property
    def level(self) -> str:
        """What happens to a training that leaves something out."""
        return self._level

    @level.setter
    def level(self, level: str) -> None:
        if level not in LEVELS:
            raise ValueError(f"{level!r} is not a level of warnings: must be one of {', '.join(map(repr, LEVELS))}")
        self._level = level

    def reset(self, model: Any, optimizer: Any) -> None:
        """Another model, optimizer or criterion: everything may be warned of again."""
        for hook in self._hooks:
            hook.remove()
        self._model = model
        self._said: set[type[TrainingWarning]] = set()
        self._has_stepped = False
        self._used: tuple[weakref.ref[Tensor], int] | None = None
        self._begin_step()
        self._hooks = _hooks_on(optimizer, self)

    def forward(self, outputs: Any) -> None:
        """Outputs of a batch are there."""
        if self._level == "quiet" or not torch.is_grad_enabled():
            return
        is_training = self._model.training
        for leaf in tree_flatten(outputs)[0]:
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                self._has_outputs = True
                leaf.register_hook(lambda _gradient: self._backward(is_training))

    def loss(self, loss: Tensor) -> None:
        """The loss of the last outputs was computed."""
        if self._has_outputs and torch.is_grad_enabled() and not loss.requires_grad:
            self._say(LossFromDetachedOutputs())

    def gradients(self) -> None:
        """The gradients of a batch were computed by memlab itself."""
        self._was_reached = True

    def before_step(self) -> None:
        """The optimizer is about to step."""
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
        """It has."""
        self._begin_step()
        self._has_stepped = True
        gradient = self._gradient()
        self._used = None if gradient is None else (weakref.ref(gradient), versions_of([gradient])[0])

    def step(self, optimizer: Any) -> None:
        """Has an optimizer step. One that is not PyTorch's has no hooks to see that by."""
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
        """A backward has come to the outputs, and has not added to the model's gradients yet."""
        if not self._was_reached:
            gradient = self._gradient()
            if gradient is not None and self._is_used(gradient):
                self._say(GradientsNotZeroed())
        self._was_reached = True
        if not is_training:
            self._say(TrainingInEvalMode())

    def _gradient(self) -> Tensor | None:
        """The first gradient that there is."""
        if not isinstance(self._model, nn.Module):
            return None
        return next((one.grad for one in self._model.parameters() if one.grad is not None), None)

    def _is_used(self, gradient: Tensor) -> bool:
        """Whether the last step has used it, and nothing has changed it since."""
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
    """Hooks on an optimizer of PyTorch, which do not keep the monitor alive."""
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
