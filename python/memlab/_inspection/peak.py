"""The memory of a training at one batch size."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.amp.grad_scaler

from memlab import _native
from memlab._inspection import weightless_pickle
from memlab._inspection.card import Card
from memlab._paging.sizes import readable
from memlab._tools.tables import listed

_Line = tuple[str, int | None, str] | None
_SHOWN_READS = 5
_OUTSIDE_PYTHON, _OUTSIDE_LAYERS, _OUTERMOST = "(no Python line)", "(outside any layer)", "(the model itself)"
#: Labels for memlab's work on a model, in place of memlab's lines.
_MODEL, _LOOP = "(the model, put on the GPU)", "(the training loop)"
_OWN = str(Path(__file__).parent.parent) + os.sep


@dataclass(frozen=True)
class Peak:
    """The memory of a training at one batch size. Sizes are bytes."""

    batch: int  #: Rows in a batch.
    allocated: int  #: ``torch.cuda.max_memory_allocated()``.
    reserved: int  #: ``torch.cuda.max_memory_reserved()`` on a card that is never full.
    needed: int  #: The memory of the smallest card on which it runs, context and libraries included.
    context: int  #: Memory of the card that a process takes beside its allocations.
    libraries: int  #: Memory that libraries allocated directly from the driver.
    step: int  #: The step with the peak, counted from 0.
    phase: str  #: ``"forward"``, ``"backward"``, ``"optimizer"`` or ``"other"``.
    line: str  #: The line of the last allocation before the peak.
    layer: str  #: The layer of that allocation.
    categories: Mapping[str, int]  #: Bytes held at the peak by category (``"activation"``, …), the largest first.
    lines: Mapping[str, int]  #: The same by line.
    layers: Mapping[str, int]  #: The same by layer.
    warnings: Sequence[str]  #: Limits of the figures.

    def __str__(self) -> str:
        rows = [
            f"batch {self.batch}: {readable(self.allocated)} allocated, {readable(self.reserved)} reserved, smallest card "
            f"{readable(self.needed)}",
            f"the peak is in step {self.step}, in {self.phase}, at {self.line}, layer {self.layer}",
        ]
        rows += [f"  {readable(nbytes):>9}  {name}" for name, nbytes in self.categories.items()]
        return "\n".join(rows + [f"note: {warning}" for warning in self.warnings])


def peak_of(family: _native.PlanFamily, batch: int, card: Card, settings: str) -> Peak:
    """The peak of a batch size, with the memory held then."""
    allocated, reserved, needed, steadiness, growth = family.needs(batch, settings, card.context)
    _, step, phase, line, layer, categories, lines, layers = family.peak(batch, settings)
    return Peak(
        batch=batch,
        allocated=allocated,
        reserved=reserved,
        needed=needed,
        context=card.context,
        libraries=family.outside,
        step=step,
        phase=phase,
        line=_line(line),
        layer=_layer(layer),
        categories={name: nbytes for name, nbytes, _ in categories},
        lines=_summed([(_line(name), nbytes) for name, nbytes, _ in lines]),
        layers=_summed([(_layer(name), nbytes) for name, nbytes, _ in layers]),
        warnings=_warnings(family, batch, card, steadiness, growth),
    )


def _summed(rows: list[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for name, nbytes in rows:
        sums[name] = sums.get(name, 0) + nbytes
    return dict(sorted(sums.items(), key=lambda row: -row[1]))


def _line(line: _Line) -> str:
    if line is None:
        return _OUTSIDE_PYTHON
    file, number, function = line
    if file.startswith(_OWN):
        return _MODEL if file == weightless_pickle.__file__ else _LOOP
    short = os.path.relpath(file) if file.startswith(os.getcwd() + os.sep) else file
    return f"{short}:{number}  {function}" if number is not None else f"{short}  {function}"


def _is_of_the_scaler(line: _Line) -> bool:
    """True if GradScaler reads the value: it affects only whether the optimizer steps, and no size."""
    return line is not None and line[0] == torch.amp.grad_scaler.__file__


def _layer(layer: str | None) -> str:
    return _OUTSIDE_LAYERS if layer is None else layer or _OUTERMOST


def _warnings(family: _native.PlanFamily, batch: int, card: Card, steadiness: str, growth: int) -> list[str]:
    warnings = list(family.warnings)
    unmatched, allocations, nbytes, low, high = family.unmatched(batch)
    if unmatched:
        warnings.append(
            f"{unmatched} of {allocations} allocations at batch {high} have no counterpart at batch {low} (at most "
            f"{readable(nbytes)} at once): they count the same at every batch"
        )
    reads = [f"{_line(line)} ({count} times)" for line, count in family.read_backs if not _is_of_the_scaler(line)]
    if reads:
        more = f" and {len(reads) - _SHOWN_READS} more lines" if len(reads) > _SHOWN_READS else ""
        warnings.append(
            "values read back from the GPU are 0 on a simulated card. If sizes depend on one of these, the figures are too "
            f'small; use source="gpu": {", ".join(reads[:_SHOWN_READS])}{more}'
        )
    if steadiness == "grows":
        warnings.append(f"each step keeps {readable(growth)} more: a long run fits on no card")
    elif steadiness == "not yet":
        warnings.append("the allocator had not settled: a long run may reserve more")
    elif steadiness == "unknown":
        warnings.append(
            "the recorded steps differ, or are too few: the figures hold for these steps only. Record more `steps`"
        )
    if family.is_far(batch):
        warnings.append(
            f"batch {batch} is far from the recorded ones, {listed(family.recorded_batches)}: kernels may choose other "
            "algorithms; record larger `batches`"
        )
    if not card.is_measured:
        warnings.append(f"the context of this card, {readable(card.context)}, is an estimate, to a few hundred MiB")
    return warnings
