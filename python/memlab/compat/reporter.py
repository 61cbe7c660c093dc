"""``memlab.MemReporter``: all tensors with their memory, and the other memory in use on a GPU."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

from memlab import _native
from memlab.compat._reporter.device_report import DeviceReport, TensorRow
from memlab.compat._reporter.report import Report
from memlab.compat._reporter.unseen_memory import UnseenMemory
from memlab.tracking import tracker

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["DeviceReport", "MemReporter", "Report", "TensorRow", "UnseenMemory"]


class MemReporter:
    """Prints the tensors of the process by device, with their names, shapes and bytes.

    `model` names parameters and buffers, and the state of its optimizers. `add_optimizer` names that of another optimizer.
    `pre_collect` collects garbage before each report. The reporter keeps neither models nor tensors alive.

    On a GPU the report ends with the memory without a tensor in Python, and with the objects that keep it alive. Autograd
    keeps this memory for backward; it is shown by layer and line. Workspaces, the allocator's cache, the context and other
    processes follow. The sum is all memory in use on the GPU.

    >>> import torch
    >>> from memlab import MemReporter
    >>> linear = torch.nn.Linear(1024, 1024)
    >>> report = MemReporter(linear).collect("cpu")
    >>> report.devices["cpu"].tensors[0]
    TensorRow(name='weight', shape='(1024, 1024)', elements=1048576, nbytes=4194304, shares=None)
    """

    def __init__(self, model: nn.Module | None = None, pre_collect: bool = False) -> None:
        from memlab.compat._tensors.live_tensors import LiveTensors
        from memlab.compat._tensors.names import name_tensors

        self.pre_collect = pre_collect
        self._names, self._live = _native.TensorNames(), LiveTensors()
        self._model = None if model is None else weakref.ref(_require_model(model))
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        if model is not None:  # The names stay if the tensors outlive the model.
            name_tensors(self._names, model, [])
        tracker.totals()  # The first use of the tracker: it knows the lines of later allocations.

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Names the tensors of an optimizer's state in later reports: ``Adam.weight.exp_avg``.

        >>> import torch, memlab
        >>> model = torch.nn.Linear(4, 4)
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> reporter = memlab.MemReporter(model)
        >>> reporter.add_optimizer(optimizer)
        >>> model(torch.ones(1, 4)).sum().backward()
        >>> optimizer.step()
        >>> "Adam.weight.exp_avg" in reporter.collect("cpu").devices["cpu"].names
        True
        """
        if all(known() is not optimizer for known in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))

    def report(self, verbose: bool = False, device: int | str | torch.device | None = None) -> None:
        """Prints the tensors of all devices, or of one: ``0``, ``"cuda:0"``, ``"cpu"`` or a `torch.device`.

        `verbose` adds ``(->name)`` to tensors in the memory of another, and prints every line.

        >>> import torch, memlab
        >>> model = torch.nn.Linear(1024, 1024, device="meta")
        >>> memlab.MemReporter(model).report(device="meta")  # doctest: +ELLIPSIS
        Element type                                            Size  Used MEM
        -------------------------------------------------------------------------------
        Storage on meta
        weight                                          (1024, 1024)     0.00B
        bias                                                 (1024,)     0.00B
        ...
        """
        print(self.collect(device, holders=True).text(verbose))

    def collect(self, device: int | str | torch.device | None = None, holders: bool = False) -> Report:
        """Returns the figures that `report` prints, as numbers. Notebooks show them as a table.

        `holders` searches for the objects that keep memory without a tensor alive, as `report` does.

        >>> import torch, memlab
        >>> model = torch.nn.Linear(1024, 1024)
        >>> table = memlab.MemReporter(model).collect("cpu").devices["cpu"]
        >>> [row.nbytes for row in table.tensors if row.name == "bias"]
        [4096]
        """
        import torch

        from memlab.compat._reporter.device_reports import device_reports
        from memlab.compat._reporter.survey import survey
        from memlab.compat._tensors.names import optimizers_of

        only = None if device is None else _device_name(device)
        if self.pre_collect:
            gc.collect()
        # Thousands of rows would trigger collections, which take longer than the report and change its figures.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            with torch._C.DisableTorchFunctionSubclass():
                model = self._model() if self._model is not None else None
                optimizers = [optimizer for known in self._optimizers if (optimizer := known()) is not None]
                optimizers += optimizers_of(model, but=optimizers)
                is_tracked = tracker.active
                table = survey(self._live, self._names, model, optimizers, is_tracked)
            return Report(device_reports(table, only, is_tracked, holders))
        finally:
            if was_enabled:
                gc.enable()


def _require_model(model: nn.Module) -> nn.Module:
    from torch import nn

    if not isinstance(model, nn.Module):
        raise TypeError(f"memlab.MemReporter takes a model (a torch.nn.Module), not a {type(model).__name__}")
    return model


def _device_name(device: int | str | torch.device) -> str:
    """Returns ``cuda:1`` for 1, and the current device for ``cuda``."""
    import torch

    if isinstance(device, int) and not isinstance(device, bool):
        return f"cuda:{device}"
    given = torch.device(device)
    if given.type == "cuda" and given.index is None:
        return f"cuda:{torch.cuda.current_device() if torch.cuda.is_initialized() else 0}"
    return str(given)
