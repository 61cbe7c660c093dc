"""``memlab.InspectNetwork``: number of a network's parameters, and of the elements that autograd saves."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from memlab._paging.sizes import readable
from memlab.inspection import Report, inspect

__all__ = ["InspectNetwork"]


class InspectNetwork:
    """A network's parameters, and the memory of its training.

    Args:
        network: the module, on any device.
        input_shape: the shape of one sample, without the batch, for a network with one floating-point input; or an example
            batch, as for `memlab.inspect`.
        options: options of `memlab.inspect`, which runs at the first query for memory; its errors are raised then.

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
        """Returns the number of elements of all parameters. Shared parameters count once."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    def get_intermediate_variable_count(self) -> int:
        """Returns the number of elements that forward keeps for backward for one sample.

        Includes outputs, and counts in the network's type.
        """
        dtypes = [parameter.dtype for parameter in self.network.parameters() if parameter.is_floating_point()]
        dtype = self._options.get("amp") or (dtypes[0] if dtypes else torch.get_default_dtype())
        return self.report.activation_bytes(1) // dtype.itemsize

    def bytes(self, batch: int) -> int:
        """Returns the peak bytes of a training with this batch size, ``torch.cuda.max_memory_allocated()``."""
        return self.report.peak(batch).allocated

    def table(self, batch: int = 1) -> str:
        """Returns the memory of each layer at the peak, the largest first."""
        layers = self.report.peak(batch).layers
        return "\n".join(f"{readable(nbytes):>9}  {layer}" for layer, nbytes in layers.items())
