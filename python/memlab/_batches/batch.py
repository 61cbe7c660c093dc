"""A batch that goes through a model in pieces: the description that the strategies share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from memlab import _native
from memlab._batches.nested import Samples
from memlab._batches.ranks import Ranks
from memlab._batches.sizing import EqualPieces, FixedSize, MeasuredSize, Sizing
from memlab._batches.unsupported_models import refuse_unsupported

# Measured piece sizes, by model, then by allowed memory, sample form and mode.
_MEASURED: WeakKeyDictionary[nn.Module, dict[Any, MeasuredSize]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Batch:
    """Samples, their model, and the division into pieces."""

    model: nn.Module
    samples: Samples
    device: torch.device
    sizing: Sizing
    #: Called with the name of a buffer that depends on the samples; None: such buffers keep the values of the last piece.
    refuse: Callable[[str], None] | None
    #: The trained parameters.
    parameters: list[Tensor]
    ranks: Ranks
    #: Bytes that the process may have allocated on the GPU; None: all free memory.
    memory: int | None
    #: A context that puts the model's layers into the mode that its forwards need.
    layers: Callable[[], AbstractContextManager[None]] = nullcontext

    @staticmethod
    def of(model: nn.Module, inputs: Any, *, micro_batch: int | None, memory: str | int, exact: bool) -> Batch:
        """Describes a batch and its model.

        Raises:
            RuntimeError: no division into pieces gives the gradients of the whole batch.
            ValueError: the batch has no samples, or `micro_batch` is below 1.
        """
        check_micro_batch(micro_batch)
        refuse_unsupported(model)
        samples = Samples(inputs)
        if len(samples) == 0:
            raise ValueError("the batch has no samples")
        device = _device_of(model, samples)
        nbytes, ranks = allowed(memory), Ranks(model)
        sizing = _in_step(ranks, len(samples), device, micro_batch) or _sizing(model, samples, device, micro_batch, nbytes)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return Batch(model, samples, device, sizing, _refuse if exact else None, parameters, ranks, nbytes)


def check_micro_batch(micro_batch: int | None) -> None:
    """Raises ValueError unless it is None or a positive whole number of samples."""
    if micro_batch is not None and (type(micro_batch) is not int or micro_batch < 1):
        raise ValueError(f"micro_batch={micro_batch!r}: must be a whole number, 1 or more")


def allowed(memory: str | int) -> int | None:
    """The bytes that `memory` allows; None: all free memory. Raises ValueError if it is no size."""
    nbytes = None if memory == "auto" else _native.parse_size(memory) if isinstance(memory, str) else memory
    if nbytes is not None and (type(nbytes) is not int or nbytes < 1):
        raise ValueError(f'memory={memory!r}: must be "auto", a whole number of bytes, or a size such as "20GiB"')
    return nbytes


def forget_sizes(model: nn.Module) -> None:
    """Forgets the measured piece sizes of a model."""
    _MEASURED.pop(model, None)


def described_size(model: nn.Module, device: torch.device, micro_batch: int | None) -> str:
    """Describes the size of the pieces of a model's batches, in words."""
    if micro_batch is not None:
        return f"{micro_batch} samples (micro_batch); a remainder has fewer"
    if device.type != "cuda":
        return "the whole batch; a CPU has no limit without micro_batch"
    largest = max((one.largest_measured for one in _MEASURED.get(model, {}).values()), default=0)
    known = f"{largest} samples so far" if largest else "found with the first batch"
    return f"as many samples as fit, {known}"


def _device_of(model: nn.Module, samples: Samples) -> torch.device:
    """The device on which the model computes: that of its first parameter."""
    parameter = next(model.parameters(), None)
    if parameter is not None:
        return parameter.device
    return next(leaf.device for leaf in samples.leaves if isinstance(leaf, Tensor))


def _in_step(ranks: Ranks, samples: int, device: torch.device, micro_batch: int | None) -> Sizing | None:
    """Equal pieces on all ranks, for ranks that wait for each other in each piece; None: these ranks do not."""
    if not ranks.are_in_step:
        return None
    if micro_batch is None and device.type == "cuda":
        raise RuntimeError(
            "the model is sharded over ranks (fully_shard), which need equal numbers of micro-batches: set micro_batch"
        )
    pieces = ranks.agreed(-(-samples // (micro_batch or samples)), device, most=True)
    fewest = ranks.agreed(samples, device, most=False)
    if fewest < pieces:
        raise ValueError(
            f"a rank has {fewest} samples, but another has {pieces} micro-batches: sharded models (fully_shard) need equal "
            "numbers on all ranks. Use batches of similar sizes, or a larger micro_batch"
        )
    return EqualPieces(samples, pieces)


def _sizing(model: nn.Module, samples: Samples, device: torch.device, micro_batch: int | None, memory: int | None) -> Sizing:
    if micro_batch is not None:
        return FixedSize(micro_batch)
    if device.type != "cuda":
        return FixedSize(len(samples))
    key = (device, memory, samples.form, model.training, torch.is_grad_enabled())
    known = _MEASURED.setdefault(model, {})
    if key not in known:
        known[key] = MeasuredSize(model, device, memory)
    return known[key]


def _refuse(buffer: str) -> None:
    raise RuntimeError(
        f"the buffer {buffer} depends on the samples of a batch: micro-batches would leave another value in it than the "
        "whole batch. memlab.accumulate and InfinityBatch allow that with exact=False"
    )
