"""The parameters of a model by module, with their sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from memlab._batches.module_costs import ModuleCost, module_costs
from memlab._native import short_size
from memlab._tools.tables import aligned


@dataclass(frozen=True)
class ParameterRow:
    """The parameters of a module. Sizes are bytes, and include all modules within it."""

    #: The name in ``named_modules()``; "" for the model itself.
    name: str
    #: The class.
    kind: str
    #: Elements of the module's own parameters. Shared parameters count in the first module that has them.
    own: int
    #: Elements of its parameters and of those of all modules within it, each counted once.
    total: int
    #: Those elements that are trained; the others are frozen.
    trainable: int
    #: Bytes of the weights.
    weight_nbytes: int
    #: Bytes of the gradients that exist now.
    gradient_nbytes: int
    #: Bytes of the optimizer's state for these parameters, from its first step on.
    optimizer_nbytes: int
    #: Times and saved bytes for a batch, if one was given.
    cost: ModuleCost | None = None

    @property
    def frozen(self) -> int:
        """Elements that are not trained."""
        return self.total - self.trainable


@dataclass(frozen=True)
class ParameterTable:
    """The parameters of a model: `rows` has one row per module, the whole model first. Printed, it is a table.

    >>> from torch import nn
    >>> print(parameter_table(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1, bias=False)), None))
    module   class         own  total  trainable  frozen  weights  gradients  optimizer
    (model)  Sequential      0  2,112      2,112       0    8.25K      0.00B      0.00B
      0      Linear      2,080  2,080      2,080       0    8.12K      0.00B      0.00B
      2      Linear         32     32         32       0  128.00B      0.00B      0.00B
    """

    rows: tuple[ParameterRow, ...]

    @property
    def total(self) -> ParameterRow:
        """The row of the whole model."""
        return self.rows[0]

    def __getitem__(self, name: str) -> ParameterRow:
        """The row of a module, by its name. Raises KeyError if it has no parameters."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def __iter__(self) -> Iterator[ParameterRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        head: tuple[str, ...] = _HEAD if self.total.cost is None else (*_HEAD, *_COST_HEAD)
        return "\n".join(aligned([head, *map(_cells, self.rows)], left=[0, 1]))


_HEAD = ("module", "class", "own", "total", "trainable", "frozen", "weights", "gradients", "optimizer")
_COST_HEAD = ("forward ms", "backward ms", "saved/sample")


def parameter_table(model: nn.Module, optimizer: Any, inputs: Any = None) -> ParameterTable:
    """Counts a model's parameters, the state of an optimizer, if one is given, and the cost of modules for `inputs`."""
    costs = {} if inputs is None else module_costs(model, inputs)
    state = getattr(optimizer, "state", {})
    counted: set[int] = set()
    rows = []
    for name, module in model.named_modules():
        own = [parameter for parameter in module.parameters(recurse=False) if id(parameter) not in counted]
        counted.update(map(id, own))
        parameters = list(module.parameters())  # Each once, even if modules share it.
        if name and not parameters and name not in costs:
            continue
        row = ParameterRow(
            name=name,
            kind=type(module).__name__,
            own=_elements(own),
            total=_elements(parameters),
            trainable=_elements([parameter for parameter in parameters if parameter.requires_grad]),
            weight_nbytes=sum(parameter.nbytes for parameter in parameters),
            gradient_nbytes=sum(parameter.grad.nbytes for parameter in parameters if parameter.grad is not None),
            optimizer_nbytes=sum(_state_nbytes(state.get(parameter)) for parameter in parameters),
            cost=costs.get(name),
        )
        rows.append(row)
    return ParameterTable(tuple(rows))


def _elements(parameters: list[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _state_nbytes(state: Any) -> int:
    """Bytes of the tensors in an optimizer's state of a parameter."""
    if isinstance(state, Tensor):
        return state.nbytes
    if isinstance(state, Mapping):
        return sum(map(_state_nbytes, state.values()))
    return sum(map(_state_nbytes, state)) if isinstance(state, (list, tuple)) else 0


def _cells(row: ParameterRow) -> tuple[str, ...]:
    depth = row.name.count(".") + 1 if row.name else 0
    name = "  " * depth + (row.name.rpartition(".")[2] or "(model)")
    counts = (row.own, row.total, row.trainable, row.frozen)
    sizes = (row.weight_nbytes, row.gradient_nbytes, row.optimizer_nbytes)
    cells = (name, row.kind, *(f"{count:,}" for count in counts), *map(short_size, sizes))
    if row.cost is None:
        return cells
    return (*cells, f"{row.cost.forward_ms:.2f}", f"{row.cost.backward_ms:.2f}", short_size(row.cost.saved_nbytes))
