"""``memlab.memory_profiler``: memory of each training iteration, by parameter and by layer."""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any

from memlab.compat._iterations.table import IterationFile, IterationMemory, layer_label
from memlab.tracking import tracker
from memlab.watching import watch

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from memlab.compat._iterations.hooks import IterationHooks

__all__ = ["IterationMemory", "memory_profiler"]


class memory_profiler:
    """Prints, every `print_period` iterations, the memory of the model's weights, gradients, feature maps and optimizer.

    Call `record_stats` after each iteration and `epoch_end` after each epoch. With `csv`, each row is also written to a file
    in ``./memory_csv_data``. `close`, or the end of a ``with``, removes the hooks from the model.

    >>> import torch
    >>> import memlab
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    >>> with memlab.memory_profiler(model, print_period=2) as profiler:
    ...     for _ in range(2):
    ...         model(torch.ones(32, 64)).sum().backward()
    ...         profiler.record_stats()  # doctest: +ELLIPSIS
    *******************************************
    Memory Usage for Iteration 2 of Epoch 1
    ...
    Total layer weight usage...........73.0 KiB
      0.weight.........................64.0 KiB
      0.bias...........................1.00 KiB
      2.weight.........................8.00 KiB
      2.bias...............................32 B
    ...
    >>> sum(profiler.last.gradients.values()) == sum(profiler.last.weights.values())
    True
    """

    def __init__(self, model: nn.Module, print_period: int = 1, csv: bool = False) -> None:
        from memlab.compat._iterations.hooks import IterationHooks

        if not isinstance(print_period, int) or print_period < 1:
            raise ValueError(
                f"print_period counts iterations between two rows and was {print_period!r}: give 1 to print every iteration"
            )
        _require_model(model)
        self.last: IterationMemory | None = None
        """The last row, as numbers."""
        self._model = weakref.ref(model)
        self._period = print_period
        self._epoch, self._iteration = 1, 0
        tracker.totals()  # The first use of the tracker: it knows the layers of later allocations.
        self._hooks: IterationHooks | None = IterationHooks(model, self._feature_maps)
        self._watches: list[watch] = []
        self._file: IterationFile | None = None
        if csv:
            parameters = [name for name, _parameter in model.named_parameters()]
            layers = [layer_label(name) for name, _module in model.named_modules()]
            self._file = IterationFile(parameters, [*layers, layer_label(None)])
        self._prepare()

    @property
    def path(self) -> Path | None:
        """The CSV file, if one is written.

        >>> import torch, memlab
        >>> with memlab.memory_profiler(torch.nn.Linear(4, 4)) as profiler:
        ...     print(profiler.path)
        None
        """
        return None if self._file is None else self._file.path

    def record_stats(self) -> None:
        """Ends an iteration. Prints the last iteration of a period.

        >>> import torch, memlab
        >>> with memlab.memory_profiler(torch.nn.Linear(4, 4), print_period=2) as profiler:
        ...     profiler.record_stats()  # The first of two: nothing is printed.
        """
        if self._hooks is None:
            raise RuntimeError("this memory_profiler is closed: make a new one to go on")
        self._iteration += 1
        if self._iteration % self._period == 0:
            self.last = self._measure(self._hooks)
            print(self.last)
            if self._file is not None:
                self._file.append(self.last)
        self._prepare()

    def epoch_end(self) -> None:
        """Ends an epoch. The next iteration is number 1 again.

        >>> import torch, memlab
        >>> with memlab.memory_profiler(torch.nn.Linear(4, 4)) as profiler:
        ...     profiler.epoch_end()
        ...     profiler.record_stats()  # doctest: +ELLIPSIS
        *******************************************
        Memory Usage for Iteration 1 of Epoch 2
        ...
        """
        self._epoch += 1
        self._iteration = 0
        self._prepare()

    def close(self) -> None:
        """Removes all hooks. A second call does nothing.

        >>> import torch, memlab
        >>> memlab.memory_profiler(torch.nn.Linear(4, 4)).close()
        """
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None
        self._end_watches()

    def __enter__(self) -> memory_profiler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _measure(self, hooks: IterationHooks) -> IterationMemory:
        """Returns the row of the iteration that ends."""
        import torch

        from memlab.compat._tensors.module_outputs import tensor_nbytes

        row = IterationMemory(self._epoch, self._iteration)
        hooks.is_recording = False
        self._end_watches()
        for card in self._cards():
            row.peak_allocated += torch.cuda.max_memory_allocated(card)
            row.peak_cached += torch.cuda.max_memory_reserved(card)
            row.current_cached += torch.cuda.memory_reserved(card)
        for watched in self._watches:
            for layer in watched.layers:
                if layer.at_peak:
                    name = layer_label(layer.name)
                    row.at_peak[name] = row.at_peak.get(name, 0) + layer.at_peak
        model = self._model()
        if model is None:
            return row
        row.feature_maps = hooks.feature_maps
        row.intermediate_gradients = hooks.intermediate_gradients
        for name, parameter in model.named_parameters():
            row.weights[name] = tensor_nbytes(parameter)
            seen = hooks.gradients.get(name, 0)
            row.gradients[name] = max(seen, 0 if parameter.grad is None else tensor_nbytes(parameter.grad))
        row.buffers = {name: tensor_nbytes(buffer) for name, buffer in model.named_buffers()}
        row.optimizer_state = hooks.optimizer_state({parameter.device for parameter in model.parameters()})
        return row

    def _prepare(self) -> None:
        """Starts measuring the iteration that begins, if it is the last one of a period."""
        is_recording = (self._iteration + 1) % self._period == 0
        if self._hooks is not None:
            self._hooks.begin_iteration(is_recording)
        self._end_watches()
        self._watches = [watch(card) for card in self._cards()] if is_recording and tracker.active else []
        for watched in self._watches:
            watched.__enter__()

    def _end_watches(self) -> None:
        for watched in self._watches:
            watched.__exit__(None, None, None)

    def _cards(self) -> list[int]:
        """Returns the CUDA devices that the model is on."""
        model = self._model()
        tensors = [] if model is None else [*model.parameters(), *model.buffers()]
        return sorted({tensor.device.index for tensor in tensors if tensor.device.type == "cuda"})

    def _feature_maps(self) -> dict[str, int] | None:
        """Returns live activations by layer, from the blocks on the model's devices; None if the blocks are unknown."""
        cards = self._cards()
        if not cards or not tracker.active:
            return None
        sums: dict[str, int] = {}
        for card in cards:
            for block in tracker.live_blocks(card):
                if block.category == "activation":
                    name = layer_label(block.layer)
                    sums[name] = sums.get(name, 0) + block.nbytes
        return sums


def _require_model(model: Any) -> None:
    from torch import nn

    if not isinstance(model, nn.Module):
        raise TypeError(f"memlab.memory_profiler takes a model (a torch.nn.Module), and was given a {type(model).__name__}")
