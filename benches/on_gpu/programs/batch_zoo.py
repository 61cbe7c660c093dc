"""Micro-batches in float32: each of PyTorch's criteria and models of many kinds, in each way that memlab has.

Prints a JSON line for each model and way, and for all criteria in each way: the distance of gradients from those of the
whole batch in float64, and the spread of float32 itself (`spread.py`), of the worst case. "beyond" names those with a
larger distance than permitted.
"""

import copy
import json

import memlab
import torch
from batch_models import SAMPLES, cases, models
from criteria import PIECES
from memlab._activations import offloaded_forward
from spread import distance, gradients, is_within, layers_in_pieces, spread
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Of `offload_activations`: a schedule exists from the third forward on.
FORWARDS = 4
SEEDS = 4


def sent(values, dtype=torch.float32, order=None):
    """Moves samples in an order to the device, with floating-point values converted from float32 to a type."""
    if values is None:
        return None
    if isinstance(values, dict):
        return {name: sent(value, dtype, order) for name, value in values.items()}
    if isinstance(values, tuple):
        return tuple(sent(value, dtype, order) for value in values)
    values = values if order is None else values[order]
    return values.float().to(DEVICE, dtype) if values.is_floating_point() else values.to(DEVICE)


def as_tuple(values):
    return () if values is None else values if isinstance(values, tuple) else (values,)


class Subject:
    """A case, computed in several ways."""

    def __init__(self, case):
        torch.manual_seed(0)
        self.case, self.first = case, case.make().float().to(DEVICE)
        self.has_batchnorm = any(isinstance(one, _BatchNorm) for one in self.first.modules())
        self._truths: dict[tuple[int | None, int] | None, torch.Tensor] = {}
        self._spreads: dict[int | None, float] = {}

    def criterion(self, dtype=torch.float32):
        known = self.case.criterion
        return copy.deepcopy(known).float().to(DEVICE, dtype) if isinstance(known, nn.Module) else known

    def loss_of_all(self, dtype=torch.float32, order=None):
        """A function of all outputs without known properties."""
        criterion, targets = self.criterion(dtype), as_tuple(sent(self.case.targets, dtype, order))
        return lambda outputs: criterion(*as_tuple(outputs), *targets)

    def plainly(self, dtype=torch.float32, order=None, size=None, seed=0):
        """Gradients by plain PyTorch: of the whole batch, or of micro-batches as far as they treat samples alone."""
        model, inputs = copy.deepcopy(self.first).to(dtype), sent(self.case.inputs, dtype, order)
        torch.manual_seed(seed)
        with layers_in_pieces(model, size if self.has_batchnorm else None):
            if size is None or self.has_batchnorm:
                outputs = model(**inputs) if isinstance(inputs, dict) else model(inputs)
            else:
                outputs = self.joined(model, inputs, size)
        self.loss_of_all(dtype, order)(outputs).backward()
        return gradients(model)

    @staticmethod
    def joined(model, inputs, size):
        if isinstance(inputs, dict):
            parts = zip(*(value.split(size) for value in inputs.values()), strict=True)
            made = [as_tuple(model(**dict(zip(inputs, part, strict=True)))) for part in parts]
        else:
            made = [as_tuple(model(part)) for part in inputs.split(size)]
        return tuple(torch.cat(pieces) for pieces in zip(*made, strict=True))

    def truth(self, size, seed=0):
        """Gradients in float64. With dropout, micro-batches draw other numbers than the whole batch."""
        key = (size, seed) if self.case.has_dropout else None
        if key not in self._truths:
            self._truths[key] = self.plainly(torch.float64, size=size if self.case.has_dropout else None, seed=seed)
        return self._truths[key]

    def spread(self, size):
        """Largest distance of plain PyTorch in float32: in micro-batches of this size and as a whole."""
        if size not in self._spreads:
            if self.case.has_dropout:  # In other orders, samples would get other numbers.
                pairs = ((self.plainly(size=size, seed=seed), self.truth(size, seed)) for seed in range(SEEDS))
                found = max(distance(*pair) for pair in pairs)
            else:
                found = spread(lambda order: self.plainly(order=order, size=size), self.truth(None), SAMPLES)
            self._spreads[size] = found
        return self._spreads[size] if size is None else max(self._spreads[size], self.spread(None))

    def by_memlab(self, way, size):
        """Gradients of each compared step."""
        model, inputs, targets = copy.deepcopy(self.first), sent(self.case.inputs), sent(self.case.targets)
        if way == "offload":
            for _ in range(FORWARDS):
                model.zero_grad()
                torch.manual_seed(0)
                with memlab.offload_activations("4KiB", device=DEVICE):
                    loss = self.loss_of_all()(model(**inputs) if isinstance(inputs, dict) else model(inputs))
                loss.backward()
                yield gradients(model)
            return
        torch.manual_seed(0)
        if way == "replay":
            memlab.accumulate(model, inputs, self.loss_of_all(), micro_batch=size)
        else:
            memlab.accumulate(model, inputs, self.criterion(), targets=targets, micro_batch=size)
        yield gradients(model)


def compared(case):
    """(distance, spread, name of the compared value) for each way."""
    subject = Subject(case)
    for way in case.ways:
        for size in (None,) if way in ("offload", "at once") else PIECES:
            name = case.name if size is None else f"{case.name}, pieces of {size}"
            for found in subject.by_memlab(way, size):
                yield way, distance(found, subject.truth(size)), subject.spread(size), name


def main():
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    offloaded_forward.SMALLEST = 1  # Moves all of these small tensors.
    names = {case.name for case in models()}
    rows: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    for case in cases():
        what = case.name if case.name in names else "criteria"
        for way, *found in compared(case):
            rows.setdefault((what, way), []).append(tuple(found))
    for (what, way), found in rows.items():
        # A distance that is not a number is the worst.
        far, usual, worst = max(found, key=lambda row: row[0] / row[1] if row[1] and row[0] == row[0] else float("inf"))
        beyond = [name for far, usual, name in found if not is_within(far, usual)]
        row = {"zoo": what, "way": way, "compared": len(found), "worst": worst, "distance": far, "spread": usual}
        print(json.dumps(row | {"beyond": beyond}), flush=True)


if __name__ == "__main__":
    main()
