"""The layout of one batch in its memory: the inputs, then the outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from memlab._feeding.sample_form import SampleForm

_PAGE_BYTES = 4096
_ALIGNMENT = 64


def _up(nbytes: int, to: int) -> int:
    return -(-nbytes // to) * to


class BatchLayout:
    """One block of memory for the inputs and outputs of `batch_size` rows.

    >>> layout = BatchLayout(SampleForm((2,), "float32"), SampleForm((), "int64"), batch_size=3)
    >>> layout.output_offset, layout.nbytes
    (64, 4096)
    """

    def __init__(self, inputs: SampleForm, outputs: SampleForm, batch_size: int) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.batch_size = batch_size
        self.output_offset = _up(batch_size * inputs.nbytes, _ALIGNMENT)
        self.nbytes = max(_up(self.output_offset + batch_size * outputs.nbytes, _PAGE_BYTES), _PAGE_BYTES)

    def arrays(self, memory: Any) -> tuple[NDArray[Any], NDArray[Any]]:
        """The inputs and the outputs as arrays over a buffer of `nbytes`."""
        return (
            np.ndarray((self.batch_size, *self.inputs.shape), self.inputs.dtype, memory),
            np.ndarray((self.batch_size, *self.outputs.shape), self.outputs.dtype, memory, self.output_offset),
        )
