"""All tensors of the process with their names, as counted by `memlab.MemReporter`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from memlab import _native
from memlab.compat._tensors.live_tensors import LiveTensors, held_by_pytorch_alone
from memlab.compat._tensors.memory import READER
from memlab.compat._tensors.names import name_tensors


def survey(
    live: LiveTensors,
    known: _native.TensorNames,
    model: nn.Module | None,
    optimizers: Iterable[Any],
    is_tracked: bool,
) -> _native.TensorTable:
    """Returns the tensors that Python holds: the model's, the optimizers', the others, each followed by its gradient.

    Tensors that no Python object refers to come last. On CUDA devices they are omitted if the tracker identifies them
    (`is_tracked`). Keeps no tensor.
    """
    named = name_tensors(known, model, optimizers)
    others = live.all()
    if named:
        others = _native.without(others, named)
    others, hidden = held_by_pytorch_alone(others)
    table = _native.TensorTable(READER, known, named, others, is_tracked)
    # These are shown only if no other has their memory: the base of a view, for instance.
    table.add_hidden(READER, known, hidden)
    known.forget_dead()
    return table
