"""Attributes that native code reads of tensors."""

from torch import Tensor

from memlab import _native
from memlab._paging.torch_private import stream_of, use_count

READS = _native.TensorReads(Tensor, use_count, stream_of)
