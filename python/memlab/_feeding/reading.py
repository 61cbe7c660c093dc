"""Calls the user's readers, and copies their samples into the rows of a batch. Runs in threads and in worker processes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memlab._feeding.errors import SampleError
from memlab._feeding.sample_form import SampleForm, is_tensor

Reader = Callable[..., Any]


@dataclass(frozen=True)
class Chunk:
    """A few samples of one batch, which one reader reads one after the other."""

    first_row: int
    indices: list[int]
    inputs: list[Any]
    outputs: list[Any]
    seed: int
    epoch: int


@dataclass(frozen=True)
class ChunkRead:
    """The result of reading a chunk."""

    sample_bytes: int
    """Maximum bytes of one side of one sample."""
    tensors: bool
    """True if the readers yield PyTorch tensors."""


class SampleReaders:
    """The readers of both sides. Picklable if the readers are."""

    def __init__(
        self, read_input: Reader, get_output: Reader, inputs: SampleForm, outputs: SampleForm, one_read_count: int
    ) -> None:
        self._sides = (("input", read_input, inputs), ("output", get_output, outputs))
        self._take_rng = tuple("rng" in _parameters(read) for read in (read_input, get_output))
        self._one_read_count = one_read_count

    def read(self, chunk: Chunk, rows: tuple[NDArray[Any], NDArray[Any]]) -> ChunkRead:
        """Reads a chunk into its rows of a batch's inputs and outputs.

        Raises:
            SampleError: a reader raised, or yielded a sample that does not match the Config.
        """
        most, tensors = 0, False
        for identities, side_rows, (side, reader, form), takes_rng in zip(
            (chunk.inputs, chunk.outputs), rows, self._sides, self._take_rng, strict=True
        ):
            row = chunk.first_row
            for index, identity in zip(chunk.indices, identities, strict=True):
                try:
                    if takes_rng:
                        # Both sides of a sample get the same random numbers: an image and its mask are flipped alike.
                        variations = reader(identity, rng=np.random.default_rng([chunk.seed, chunk.epoch, index]))
                    else:
                        variations = reader(identity)
                    held_bytes, are_tensors = self._write(variations, form, side_rows, row)
                except Exception as error:
                    what = f"{side} of sample {identity!r} (number {index}): {type(error).__name__}: {error}"
                    raise SampleError(what, identity, index, side) from error
                if held_bytes > most:
                    most = held_bytes
                tensors = tensors or are_tensors
                row += self._one_read_count
        return ChunkRead(most, tensors)

    def _write(self, variations: Any, form: SampleForm, rows: NDArray[Any], first: int) -> tuple[int, bool]:
        """Copies the variations of a sample into its rows.

        Returns the bytes held at a time, and whether the variations are tensors.
        """
        if self._one_read_count == 1 and form.fits_as_it_is(variations):
            rows[first] = variations
            return form.nbytes, False
        held_bytes, tensors, together = 0, False, False
        if isinstance(variations, (list, tuple)):
            together = True
        elif isinstance(variations, np.ndarray) or is_tensor(variations):
            if self._one_read_count == 1 and variations.shape == form.shape:
                return form.write(variations, rows, first), is_tensor(variations)  # The sample itself.
            held_bytes = variations.nbytes
        elif not isinstance(variations, Iterable):
            raise TypeError(f"returns {type(variations).__name__}; must be a generator or an iterable of arrays or tensors")
        row, end = first, first + self._one_read_count
        for sample in variations:
            if row == end:
                raise ValueError(f"yields more than one_read_count={self._one_read_count} variations")
            nbytes = form.write(sample, rows, row)
            if together:
                held_bytes += nbytes
            elif nbytes > held_bytes:
                held_bytes = nbytes
            tensors = tensors or is_tensor(sample)
            row += 1
        if row < end:
            raise ValueError(f"yields {row - first} variations; one_read_count is {self._one_read_count}")
        return held_bytes, tensors


def _parameters(reader: Reader) -> Iterable[str]:
    try:
        return inspect.signature(reader).parameters
    except (TypeError, ValueError):
        return ()  # Some built-in functions have no signature.
