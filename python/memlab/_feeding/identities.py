"""The identities of samples in one array, since a list of a million names is a million objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Identities:
    """The identities of the samples, by their number.

    Texts are stored as one array of UTF-8 and one of their end offsets, whole numbers as one array of int64. NumPy arrays
    are kept unchanged. Other values are kept in one array of objects.

    >>> names = Identities(["a.png", "ä.png"])
    >>> names.at(np.array([1, 0])), len(names), names.nbytes
    (['ä.png', 'a.png'], 2, 35)
    """

    def __init__(self, given: Sequence[Any]) -> None:
        self._ends: NDArray[np.int64] | None = None
        self._values: NDArray[Any]
        if isinstance(given, np.ndarray):
            self._values = given
        elif all(type(one) is str for one in given):
            texts = [one.encode("utf-8", "surrogateescape") for one in given]
            self._ends = np.cumsum([0, *(len(text) for text in texts)], dtype=np.int64)
            self._values = np.frombuffer(b"".join(texts), dtype=np.uint8)
        elif all(type(one) is int and -(2**63) <= one < 2**63 for one in given):
            self._values = np.array(given, dtype=np.int64)
        else:
            self._values = np.empty(len(given), dtype=object)
            for index, one in enumerate(given):  # Assigned one by one: tuples would become a second dimension.
                self._values[index] = one

    def __len__(self) -> int:
        return len(self._values) if self._ends is None else len(self._ends) - 1

    def at(self, indices: NDArray[np.int64]) -> list[Any]:
        """The identities with these numbers, as Python types where possible."""
        if self._ends is None:
            chosen = self._values[indices]
            return list(chosen) if chosen.ndim > 1 else chosen.tolist()
        starts, ends = self._ends[indices].tolist(), self._ends[indices + 1].tolist()
        texts = (self._values[start:end].tobytes() for start, end in zip(starts, ends, strict=True))
        return [text.decode("utf-8", "surrogateescape") for text in texts]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self._values.nbytes + (0 if self._ends is None else self._ends.nbytes)
