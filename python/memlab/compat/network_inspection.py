"""``memlab.InspectNetwork``: how many numbers a network has, and how many autograd saves."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from memlab._paging.sizes import readable
from memlab.inspection import Report, inspect

__all__ = ["InspectNetwork"]


class InspectNetwork:
    """A network's parameters, and what its training takes.

    Args:
        network: the module, on any device.
        input_shape: the shape of one sample, without the batch, for a network of one floating-point tensor; or an example
            batch, as for `memlab.inspect`.
        options: of `memlab.inspect`, which is called when the first figure of memory is asked for; its errors come then.

    >>> import memlab, torch
    >>> embedding = torch.nn.Embedding(100, 8)
    >>> head = torch.nn.Linear(8, 100, bias=False)
    >>> head.weight = embedding.weight
    >>> memlab.InspectNetwork(torch.nn.Sequential(embedding, head), torch.zeros(1, 16).long()).get_parameter_count()
    800
    """

    def __init__(self, network: torch.nn.Module, input_shape: Any, **options: Any) -> None:
        self.network = network
        is_shape = isinstance(input_shape, (tuple, list)) and all(isinstance(size, int) for size in input_shape)
        self._batch = torch.zeros(1, *input_shape) if is_shape else input_shape
        self._options = options

    def __repr__(self) -> str:
        return f"<memlab.InspectNetwork: {type(self.network).__name__} of {self.get_parameter_count()} parameters>"

    @cached_property
    def report(self) -> Report:
        """The plan of `memlab.inspect`."""
        return inspect(self.network, self._batch, **self._options)

    def get_parameter_count(self) -> int:
        """Elements of all parameters; those that are shared count once."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    def get_intermediate_variable_count(self) -> int:
        """Elements that forward leaves to backward for one sample, outputs included, counted in the network's type."""
        dtypes = [parameter.dtype for parameter in self.network.parameters() if parameter.is_floating_point()]
        dtype = self._options.get("amp") or (dtypes[0] if dtypes else torch.get_default_dtype())
        return self.report.activation_bytes(1) // dtype.itemsize

    def bytes(self, batch: int) -> int:
        """What is allocated at the peak of a training with so many rows, ``torch.cuda.max_memory_allocated()``."""
        return self.report.peak(batch).allocated

    def table(self, batch: int = 1) -> str:
        """What each layer holds at the peak, the largest first."""
        layers = self.report.peak(batch).layers
        return "\n".join(f"{readable(nbytes):>9}  {layer}" for layer, nbytes in layers.items())
