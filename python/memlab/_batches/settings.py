"""The settings of `memlab.InfinityBatch`: models, optimizers, criteria and options."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from memlab._arguments import require_model
from memlab._batches.batch import allowed, check_micro_batch, forget_sizes
from memlab._batches.batchnorm import check_choice
from memlab._batches.callbacks import Callbacks
from memlab._batches.containers import Containers
from memlab._batches.lockstep_history import forget_lockstep_history
from memlab._batches.monitor import Monitor
from memlab._batches.observers import Computation
from memlab._batches.strategies import check_exact
from memlab._batches.traced_steps import TracedSteps
from memlab._batches.tracked_loader import TrackedLoader
from memlab._batches.whole_batch import forget_budgets

_TRAINED = ("model", "optimizer", "criterion")
_ATTRIBUTES = (
    *_TRAINED,
    "dataloader",
    "backward_device",
    "verbose",
    "memory",
    "exact",
    "batchnorm",
    "micro_batch",
    "keep",
    "keep_nbytes",
    "callbacks",
    "warnings_level",
)


def _check_device(device: torch.device | str | None) -> None:
    if device is not None:
        torch.device(device)


# Checks that raise ValueError (for devices RuntimeError) for invalid values of attributes.
_CHECKS: dict[str, Callable[[Any], object]] = {
    "backward_device": _check_device,
    "batchnorm": check_choice,
    "exact": check_exact,
    "memory": allowed,
    "micro_batch": check_micro_batch,
}


@dataclass
class Phase:
    """The state of a model's training."""

    monitor: Monitor
    #: The last outputs and the last loss.
    outputs: Any = None
    loss: Tensor | None = None
    #: The computation of outputs that no step has used yet; None: no outputs are pending.
    computation: Computation | None = None
    #: True if a batch is recorded that no step has used yet.
    has_noted: bool = False
    #: True once the optimizer was found to have the model's parameters.
    is_checked: bool = False


class Settings(Containers):
    """The trained models and the options. A model, an optimizer and a criterion, or lists or dictionaries of several."""

    model: Any
    optimizer: Any
    criterion: Any
    backward_device: torch.device | str | None

    def __init__(self, level: str) -> None:
        self._name: Any = None
        self._phases: dict[Any, Phase] = {}
        self._level = level
        self._traced = TracedSteps()
        self._begin_anew()

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name not in _ATTRIBUTES:
            if name == "plan":
                raise AttributeError("ib.plan is read-only; for warnings, set ib.warnings_level")
            near = difflib.get_close_matches(name, _ATTRIBUTES, 1)
            meant = f": did you mean {near[0]!r}?" if near else f"; it has {', '.join(_ATTRIBUTES)}"
            raise AttributeError(f"InfinityBatch has no attribute {name!r}{meant}")
        if name in _CHECKS:
            _CHECKS[name](value)
        object.__setattr__(self, name, value)
        if name in _TRAINED:
            self._begin_anew()

    @property
    def dataloader(self) -> Any:
        """The dataloader. `batch_` and `loss` know the current batch of a loop over it."""
        return self._batches

    @dataloader.setter
    def dataloader(self, loader: Iterable[Any] | None) -> None:
        self._batches = None if loader is None else TrackedLoader(loader, self._outputs_device)

    @property
    def warnings_level(self) -> str:
        """The reaction to a loop that leaves something out: ``"strict"``, ``"default"`` or ``"quiet"``."""
        return self._level

    @warnings_level.setter
    def warnings_level(self, level: str) -> None:
        for phase in self._phases.values():
            phase.monitor.level = level
        self._level = level

    @property
    def callbacks(self) -> list[Any]:
        """Objects whose methods are called at the events of a training."""
        return self._callbacks

    @callbacks.setter
    def callbacks(self, callbacks: Iterable[Any]) -> None:
        self._callbacks = Callbacks(callbacks)

    @property
    def forward_device(self) -> torch.device:
        """The device on which the model computes."""
        return next((parameter.device for parameter in self._model().parameters()), torch.device("cpu"))

    def _outputs_device(self) -> torch.device | None:
        """The device of the outputs of `batch_`; None: no model is set. (Of several models, the first decides.)"""
        if self.backward_device is not None:
            return torch.device(self.backward_device)
        name = self._name if self._name in self._phases else next(iter(self._phases), None)
        parameter = next(self._model_of(name).parameters(), None)
        return None if parameter is None else parameter.device

    @contextmanager
    def phase(self, name: Any) -> Iterator[None]:
        """Chooses among several models, optimizers and criteria for a block, by a key, or an index of a list.

        A value outside a list or dictionary is used in all phases. In the block the other models are frozen: their
        parameters get no gradients, while gradients go through them.

        Raises:
            ValueError: no phase has this name.
        """
        if name not in self._phases or name is None:
            raise ValueError(f"no phase {name!r}: {self._described()}")
        own = {id(parameter) for parameter in self._model_of(name).parameters()}
        others = [one for other in self._phases for one in self._model_of(other).parameters() if id(one) not in own]
        frozen = [parameter for parameter in others if parameter.requires_grad]
        before, self._name = self._name, name
        try:
            for parameter in frozen:
                parameter.requires_grad_(False)
            yield
        finally:
            self._name = before
            for parameter in frozen:
                parameter.requires_grad_(True)

    def _begin_anew(self) -> None:
        """Forgets the state of another model, optimizer or criterion: sizes, the last batch, issued warnings."""
        for phase in self._phases.values():
            phase.monitor.reset(None, None)
        collections = [named for one in _TRAINED if (named := _by_name(vars(self).get(one))) is not None]
        names = dict.fromkeys(name for named in collections for name in named) if collections else [None]
        self._phases = {name: Phase(Monitor(self._level)) for name in names}
        for name, phase in self._phases.items():
            model = self._chosen("model", name)
            if isinstance(model, nn.Module):
                forget_sizes(model)
                forget_budgets(model)
                forget_lockstep_history(model)
            phase.monitor.reset(model, self._chosen("optimizer", name))

    @property
    def _phase(self) -> Phase:
        self._check_phase()
        return self._phases[self._name]

    def _check_phase(self) -> None:
        if self._name not in self._phases:
            raise RuntimeError(f"this InfinityBatch has several models, optimizers or criteria: {self._described()}")

    def _described(self) -> str:
        names = [name for name in self._phases if name is not None]
        if not names:
            return "this InfinityBatch has one model, one optimizer and one criterion"
        return f"choose one of {', '.join(map(repr, names))}, as in: with ib.phase({names[0]!r})"

    def _chosen(self, attribute: str, name: Any) -> Any:
        """The value of an attribute for a phase; None: not set."""
        value = vars(self).get(attribute)
        named = _by_name(value)
        return value if named is None else named.get(name)

    def _model_of(self, name: Any) -> nn.Module:
        model = self._chosen("model", name)
        return model if isinstance(model, nn.Module) else nn.Module()

    def _required(self, attribute: str) -> Any:
        """The value of an attribute in the current phase. Raises RuntimeError if it is not set."""
        if attribute in _TRAINED:
            self._check_phase()
            value = self._chosen(attribute, self._name)
        else:
            value = getattr(self, attribute)
        if value is None:
            place = "" if self._name is None else f" for the phase {self._name!r}"
            raise RuntimeError(f"InfinityBatch has no {attribute}{place}: set ib.{attribute}")
        return value

    def _model(self) -> nn.Module:
        model: nn.Module = self._required("model")
        require_model("InfinityBatch", model)
        return model

    def _check_optimizer(self) -> None:
        """Raises RuntimeError if the optimizer trains none of the model's parameters. Checks again after a change."""
        optimizer, model = self._required("optimizer"), self._model()
        if self._phase.is_checked:
            return
        trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        own = {id(parameter) for parameter in model.parameters()}
        if own and not trained & own:
            raise RuntimeError(
                "the optimizer has none of the model's parameters: make it from ib.model's parameters, after ib.model is set"
            )
        self._phase.is_checked = True


def _by_name(value: Any) -> dict[Any, Any] | None:
    """The entries of a list or dictionary by their index or key; None: the value is neither."""
    if isinstance(value, (Mapping, nn.ModuleDict)):
        return dict(value.items())
    return dict(enumerate(value)) if isinstance(value, (list, tuple, nn.ModuleList)) else None
