"""Warnings of `memlab.InfinityBatch` about your own training loop: categories for ``warnings``, each with the name of its
rule.

Each is issued once for a given model, optimizer and criterion. ``InfinityBatch(plan="strict")`` raises them,
``plan="quiet"`` disables the checks.

>>> import memlab, warnings
>>> warnings.filterwarnings("ignore", category=memlab.training_warnings.TrainingInEvalMode)
>>> [kind.rule for kind in memlab.TrainingWarning.__subclasses__()]  # doctest: +NORMALIZE_WHITESPACE
['gradients-not-zeroed', 'step-without-backward', 'loss-from-detached-outputs', 'training-in-eval-mode',
 'parameters-without-gradient']
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "GradientsNotZeroed",
    "LossFromDetachedOutputs",
    "ParametersWithoutGradient",
    "StepWithoutBackward",
    "TrainingInEvalMode",
    "TrainingWarning",
]


class TrainingWarning(UserWarning):
    """Something is probably missing in the loop of a training. `rule` identifies it, for programs.

    >>> import memlab, torch, warnings
    >>> model = torch.nn.Linear(3, 2)
    >>> ib = memlab.InfinityBatch(model, torch.optim.SGD(model.parameters(), 0.1), plan="strict")
    >>> try:
    ...     ib.step()
    ... except memlab.TrainingWarning as warning:
    ...     print(warning.rule)
    step-without-backward
    """

    rule = "training"


class GradientsNotZeroed(TrainingWarning):
    """A backward adds to gradients that the optimizer has already used."""

    rule = "gradients-not-zeroed"

    def __init__(self) -> None:
        super().__init__("backward adds to the gradients of the last step: call zero_grad() between step() and backward()")


class StepWithoutBackward(TrainingWarning):
    """The optimizer steps without new gradients since its last step."""

    rule = "step-without-backward"

    def __init__(self) -> None:
        super().__init__("step() without new gradients: call backward() first, of a loss computed from the outputs")


class LossFromDetachedOutputs(TrainingWarning):
    """The loss has no graph that leads back to the model's outputs."""

    rule = "loss-from-detached-outputs"

    def __init__(self) -> None:
        super().__init__(
            "the loss does not lead back to the outputs of batch_(): compute it from them, not from copies without a graph "
            "(detach(), .data, numpy(), argmax(), no_grad())"
        )


class TrainingInEvalMode(TrainingWarning):
    """A backward runs through a model in evaluation mode."""

    rule = "training-in-eval-mode"

    def __init__(self) -> None:
        super().__init__("the model trains in evaluation mode, without dropout: call model.train() first")


class ParametersWithoutGradient(TrainingWarning):
    """Trained parameters have no gradient in the first step. `names` contains their names."""

    rule = "parameters-without-gradient"

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        shown = ", ".join(self.names[:5]) + (f" and {len(self.names) - 5} more" if len(self.names) > 5 else "")
        super().__init__(
            f"parameters got no gradient in the first step: {shown}. Use them in the forward, or set requires_grad=False"
        )
