"""The shape and type of a sample, and its copy into a row of a batch."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """The NumPy type of a NumPy or a PyTorch type.

    Raises:
        TypeError: NumPy does not have it (bfloat16).
    """
    if type(dtype).__module__ == "torch":
        name = str(dtype).removeprefix("torch.")
        try:
            return np.dtype(name)
        except TypeError:
            raise TypeError(
                f"{dtype} is not a NumPy type; read float32 or uint8 samples, and pass convert_input={dtype} to the Feeder, "
                "which converts on the device"
            ) from None
    return np.dtype(dtype)


class SampleForm:
    """The shape and type of all samples of one side.

    >>> form = SampleForm((3, 2), "float32")
    >>> form.nbytes
    24
    >>> rows = np.zeros((2, *form.shape), form.dtype)
    >>> form.write(np.ones((3, 2)), rows, row=1)  # float64 to float32
    48
    >>> rows.sum(axis=(1, 2)).tolist()
    [0.0, 6.0]
    """

    def __init__(self, shape: Sequence[int] | int, dtype: Any) -> None:
        self.shape: tuple[int, ...] = (shape,) if isinstance(shape, int) else tuple(int(size) for size in shape)
        if any(size < 0 for size in self.shape):
            raise ValueError(f"shape {self.shape}: sizes must be 0 or more")
        self.dtype = numpy_dtype(dtype)
        if self.dtype.hasobject:
            raise TypeError(f"dtype {self.dtype}: must be a type of fixed size")
        self.nbytes: int = math.prod(self.shape) * self.dtype.itemsize
        # Python numbers, for samples that are one number: NumPy raises if they are too large.
        numbers = {"f": (int, float), "i": (int,), "u": (int,), "b": (bool,)}.get(self.dtype.kind, ())
        self._numbers = numbers if self.shape == () else ()

    def fits_as_it_is(self, sample: Any) -> bool:
        """True if the sample can be assigned to a row directly: most samples have the right shape and type."""
        if isinstance(sample, np.ndarray):
            return sample.shape == self.shape and sample.dtype == self.dtype
        return type(sample) in self._numbers

    def write(self, sample: Any, rows: NDArray[Any], row: int) -> int:
        """Copies a sample into its row of a batch, and returns the sample's bytes.

        Raises:
            TypeError, ValueError: it has another shape, or a type that cannot be converted safely.
        """
        array = sample if type(sample) is np.ndarray else as_array(sample)
        if array.shape != self.shape:
            raise ValueError(f"has shape {array.shape}; the Config has {self.shape}")
        if array.dtype != self.dtype and not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise TypeError(f"is {array.dtype}, which cannot be converted to the Config's {self.dtype}")
        rows[row] = array
        return array.nbytes


def is_tensor(sample: Any) -> bool:
    """True for PyTorch tensors. Does not import PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(sample, torch.Tensor)


def as_array(sample: Any) -> NDArray[Any]:
    """An array or a tensor as an array, without a copy if it is in host memory."""
    if is_tensor(sample):
        return np.asarray(sample.detach().cpu().numpy())
    return np.asarray(sample)
