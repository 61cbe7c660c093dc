"""The description of a tensor without its memory, for recreating it over a storage."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from memlab._paging.tensor_memory import view_of


class View(NamedTuple):
    """The layout of a tensor in its storage."""

    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int

    @staticmethod
    def of(tensor: Tensor) -> View:
        return View(tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset())

    def over(self, storage: torch.UntypedStorage) -> Tensor:
        return view_of(storage, self.dtype, self.offset, self.shape, self.stride)
