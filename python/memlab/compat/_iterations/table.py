"""The rows of `memlab.memory_profiler`: as numbers, as a table of dotted lines, and in a CSV file."""

from __future__ import annotations

import csv
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from memlab._native import format_size

_WIDTH = 43  # Width of pytorch_mem_profiler's tables.
FOLDER = "memory_csv_data"


@dataclass
class IterationMemory:
    """Memory of one iteration. All sizes are bytes. The keys of dictionaries are names of parameters or layers."""

    epoch: int
    iteration: int
    peak_allocated: int = 0  # PyTorch's counters, summed over the model's devices.
    peak_cached: int = 0
    current_cached: int = 0
    feature_maps: dict[str, int] = field(default_factory=dict)  # Present at the end of the forward.
    at_peak: dict[str, int] = field(default_factory=dict)  # All memory at the iteration's peak.
    weights: dict[str, int] = field(default_factory=dict)
    gradients: dict[str, int] = field(default_factory=dict)
    buffers: dict[str, int] = field(default_factory=dict)
    optimizer_state: int = 0
    intermediate_gradients: int = 0  # Peak bytes of the gradients of layers' outputs.

    def __str__(self) -> str:
        title = f"Memory Usage for Iteration {self.iteration} of Epoch {self.epoch}"
        lines = [("Peak allocated", self.peak_allocated)] if self.peak_cached else []
        lines += [("Peak cached", self.peak_cached), ("Current cached", self.current_cached)]
        lines += _group("Total feature map usage", self.feature_maps)
        if self.at_peak:
            lines += [_EMPTY, *_group("All memory at the peak", self.at_peak)]
        lines += [_EMPTY, *_group("Total layer weight usage", self.weights)]
        if self.buffers:
            lines += [_EMPTY, *_group("Total buffer usage", self.buffers)]
        gradients = {f"{name} grad": nbytes for name, nbytes in self.gradients.items()}
        lines += [_EMPTY, *_group("Total layer weight gradient usage", gradients)]
        lines += [("Intermediate gradients", self.intermediate_gradients), ("Optimizer state", self.optimizer_state)]
        # Long names widen the table.
        width = max(_WIDTH, *(len(f"{label}..{format_size(nbytes)}") for label, nbytes in lines))
        stars = "*" * width
        return "\n".join([stars, title, stars, *(_dotted(label, nbytes, width) for label, nbytes in lines)])


_EMPTY = ("", 0)


def _group(title: str, sizes: dict[str, int]) -> list[tuple[str, int]]:
    return [(title, sum(sizes.values())), *((f"  {name}", nbytes) for name, nbytes in sizes.items())]


def _dotted(label: str, nbytes: int, width: int) -> str:
    size = format_size(nbytes)
    return label + "." * (width - len(label) - len(size)) + size if label else ""


def layer_label(name: str | None) -> str:
    """Returns a layer's name in a row. The model itself is ``(model)``, and memory in no layer is ``(outside)``."""
    return "(outside)" if name is None else name or "(model)"


class IterationFile:
    """A CSV file in ``./memory_csv_data``, named by the time: the columns of pytorch_mem_profiler and more, in bytes."""

    def __init__(self, parameters: list[str], layers: list[str]) -> None:
        self._parameters, self._layers = parameters, layers
        folder = Path.cwd() / FOLDER
        folder.mkdir(exist_ok=True)
        name = time.strftime("%Y%m%d%H%M%S")
        for number in count(1):
            self.path = folder / (f"{name}.csv" if number == 1 else f"{name}_{number}.csv")
            try:
                with self.path.open("x", newline="") as file:
                    csv.writer(file).writerow(self._header())
                return
            except FileExistsError:  # Another profiler of the same second.
                continue

    def append(self, row: IterationMemory) -> None:
        """Writes a row."""
        weights = [row.weights.get(name, 0) for name in self._parameters]
        gradients = [row.gradients.get(name, 0) for name in self._parameters]
        feature_maps = [row.feature_maps.get(name, 0) for name in self._layers]
        values: list[int] = [row.epoch, row.iteration, row.peak_allocated, row.peak_cached, row.current_cached]
        values += [sum(row.feature_maps.values()), sum(row.weights.values()), *weights]
        values += [sum(row.gradients.values()), *gradients, row.intermediate_gradients]
        values += [sum(row.buffers.values()), row.optimizer_state, *feature_maps]
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow(values)

    def _header(self) -> list[str]:
        return [
            *("epoch", "iteration", "peak_allocated", "peak_cached", "current_cached"),
            *("total_activation_usage", "total_weight_usage", *self._parameters),
            *("total_gradient_usage", *(f"{name}_grad" for name in self._parameters), "intermediate_grads"),
            *("total_buffer_usage", "total_optimizer_state_usage", *(f"{name}_activation" for name in self._layers)),
        ]
