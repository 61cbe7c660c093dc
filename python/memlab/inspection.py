"""``memlab.inspect``: the memory of a training, at any batch size and on any card, without a GPU.

    report = memlab.inspect(model, batch, loss=loss, optimizer="adamw", amp=torch.bfloat16)
    report.largest_batch("24GiB", allocator="expandable_segments:True")
    print(report.peak(batch=32))

The model's structure is sent to separate processes, which run a few steps at several batch sizes on a simulated card, or on
the GPU. No weights are copied, and the model may be larger than the machine's memory (on the meta device).

>>> import memlab
>>> memlab.inspection.inspect is memlab.inspect
True
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch

from memlab._inspection.batches import length_of, size_of, with_rows
from memlab._inspection.card import DEFAULT, card_of, card_that_is_there, is_gpu_there
from memlab._inspection.peak import Peak
from memlab._inspection.recorded import InspectionError, recorded, recorded_lengths
from memlab._inspection.report import Report, Setting
from memlab._inspection.sequence import SequenceRow, StepSequence, lengths_in, sequence_of
from memlab._inspection.training import OPTIMIZERS, Training
from memlab._inspection.weightless_pickle import UnpicklableModelError
from memlab._tools.tables import listed

__all__ = [
    "CannotTravel",
    "InspectionError",
    "Peak",
    "Report",
    "SequenceRow",
    "Setting",
    "StepSequence",
    "UnpicklableModelError",
    "inspect",
]

CannotTravel = UnpicklableModelError  # Its earlier name.

Optimizer = str | Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] | None


def inspect(
    model: torch.nn.Module,
    batch: Any,
    *,
    loss: Callable[[Any, Any], torch.Tensor] | None = None,
    optimizer: Optimizer = "adamw",
    amp: torch.dtype | None = None,
    accumulate: int = 1,
    source: Literal["auto", "gpu", "simulated"] = "auto",
    card: int | str | None = None,
    steps: int = 4,
    batches: tuple[int, int] = (2, 4),
    batch_dim: int = 0,
    lengths: Iterable[int] | str | os.PathLike[str] | None = None,
    length_dim: int | None = None,
) -> Report:
    """Plans the memory of a training, or of inference, from a few steps at some batch sizes.

    Each step sets gradients to zero, moves a batch to the GPU, runs forward, loss and backward, and the optimizer. As in
    most programs, outputs live until those of the next step exist. A training runs in training mode, even if the model is in
    evaluation mode.

    Args:
        model: on any device; on the meta device it may be larger than the machine's memory.
        batch: an example of any size: a tensor, or a dict, tuple or list of tensors. From a dict, the model gets the entries
            with a parameter in its forward; from a tuple all entries, or the first if its forward does not accept that many.
        loss: computes a scalar from outputs and batch, both on the GPU. None: ``outputs.loss``, or the sum of the outputs.
        optimizer: ``"adamw"``, ``"adam"``, ``"sgd"``, ``"adafactor"``, a function from parameters to an optimizer, or None
            for inference without gradients.
        amp: the type of autocast, with a `GradScaler` for ``torch.float16``.
        accumulate: backwards in a step of the optimizer.
        source: the device of the steps: ``"gpu"``, ``"simulated"``, or ``"auto"`` for the GPU if one is present.
        card: the card (name, size or bytes) that is simulated, and the default card of the report. None: the GPU of this
            machine, or an H100.
        steps: number of recorded steps.
        batches: the two recorded batch sizes. On a simulated card, a third is recorded: the largest batch that then fits, or
            8 times the larger one. The further a batch is from all of them, the more likely kernels behave differently.
        batch_dim: the dimension of tensors in `batch` that counts its rows. Tensors with other sizes there stay unchanged.
        lengths: the length of each step of a training with as many rows as `batch` has: numbers, or a file with one on each
            line. ``report.sequence`` then contains the memory of these steps in this order and in others, with the current
            settings of the allocator and with others. Three more recordings are made, at the longest length, half and a
            quarter of it.
        length_dim: the dimension of tensors in `batch` that is the length, for the tensors with the most common size there.
            None: 1, or 0 if `batch_dim` is 1.

    Raises:
        InspectionError: PyTorch has no CUDA, or the model fails; the message contains its output.
        UnpicklableModelError: the model, the batch or a function cannot be pickled. Functions and classes of the main
            program are sent if cloudpickle is installed; others are imported.
        TypeError, ValueError: an argument is wrong.

    >>> import memlab, torch
    >>> with torch.device("meta"):
    ...     model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 1))
    >>> report = memlab.inspect(model, torch.zeros(1, 1024), source="simulated")
    >>> peak = report.peak(batch=64)
    >>> peak.categories["parameter"] >= 4 * 1024 * 1025, peak.allocated < peak.needed < report.peak(batch=4096).needed
    (True, True)
    """
    if length_dim is None:
        length_dim = 0 if batch_dim == 1 else 1
    training = _training(model, batch, loss, optimizer, amp, accumulate, steps, batches, batch_dim, length_dim)
    wanted = None if lengths is None else lengths_in(lengths)
    _, tensors = length_of(batch, length_dim) if wanted else (0, [])
    if torch.version.cuda is None:
        raise InspectionError(
            "this PyTorch is built without CUDA: install a build with CUDA, which uses the simulated card without a GPU"
        )
    if source not in ("auto", "gpu", "simulated"):
        raise ValueError(f"source={source!r}: must be 'auto', 'gpu' or 'simulated'")
    on_gpu = source == "gpu" or (source == "auto" and is_gpu_there())
    default = card_that_is_there() if on_gpu and card is None else DEFAULT
    name = f"{card}B" if isinstance(card, int) else card or default
    where = card_of(name)
    family = recorded(training, batches, name, on_gpu)
    kind = optimizer if isinstance(optimizer, str) else "inference" if optimizer is None else "a custom optimizer"
    mixed = f", {str(amp).removeprefix('torch.')}" if amp is not None else ""
    recording = f"batches {listed(family.recorded_batches)} on {'' if on_gpu else 'a simulated '}{where.name}"
    title = f"{type(model).__name__}, {kind}{mixed}, recorded with {recording}"
    sequence = None
    if wanted:
        answer = recorded_lengths(training, size_of(batch, batch_dim), wanted, name, on_gpu)
        sequence = sequence_of(answer, length_dim, tensors)
    return Report(family, name, title, sequence)


def _training(
    model: torch.nn.Module,
    batch: Any,
    loss: Callable[[Any, Any], torch.Tensor] | None,
    optimizer: Optimizer,
    amp: torch.dtype | None,
    accumulate: int,
    steps: int,
    batches: tuple[int, int],
    batch_dim: int,
    length_dim: int,
) -> Training:
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    if isinstance(optimizer, str):
        there = [name for name, of_torch in OPTIMIZERS.items() if hasattr(torch.optim, of_torch)]
        if optimizer not in there:
            raise ValueError(f"optimizer={optimizer!r}: must be {', '.join(there)}, a function from parameters, or None")
    for name, count in (("accumulate", accumulate), ("steps", steps), *(("batches", size) for size in batches)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"{name}={count!r}: must be 1 or more")
    if len(batches) != 2 or batches[0] == batches[1]:
        raise ValueError(f"batches={batches}: must be two different batch sizes")
    if length_dim == batch_dim:
        raise ValueError(f"length_dim={length_dim}: must differ from batch_dim")
    example = with_rows(batch, batch_dim, max(batches))
    # One step more than is recorded: a step ends in the recording when the next one ends.
    return Training(model, example, batch_dim, length_dim, loss, optimizer, amp, accumulate, steps + 1)
