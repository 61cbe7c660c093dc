"""Batches that are spread over the ranks of DistributedDataParallel: gradients are averaged once, in the last piece."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Ranks:
    """A model's ranks; one, if it is not in DistributedDataParallel."""

    def __init__(self, model: nn.Module) -> None:
        self._parallel = model if isinstance(model, DistributedDataParallel) else None
        self._model = model

    @property
    def are_several(self) -> bool:
        """Whether gradients are averaged over ranks."""
        return self._parallel is not None

    def model(self, is_last: bool = False) -> nn.Module:
        """What a piece goes through: only the last goes through the wrapper, whose backward averages all that was added."""
        if self._parallel is None or is_last:
            return self._model
        inner: nn.Module = self._parallel.module
        return inner

    def part_of_all(self, weight: Tensor | int, device: torch.device) -> Tensor | int:
        """What D of pieces is to be divided by, so that the average over ranks is the mean of all samples: the average D."""
        if self._parallel is None:
            return weight
        total = torch.as_tensor(weight, dtype=torch.float64).to(device)
        torch.distributed.all_reduce(total, group=self._parallel.process_group)
        return total / torch.distributed.get_world_size(self._parallel.process_group)
