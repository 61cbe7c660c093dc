"""All tensors of the process with their names: what `memlab.MemReporter` counts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from memlab import _native
from memlab._tensors.live_tensors import LiveTensors, held_by_pytorch_alone
from memlab._tensors.memory import TensorMemory, memory_of, memory_of_plain, parts, with_parts
from memlab._tensors.names import gradients_of, model_tensors, optimizer_states, tensors_within


def survey(
    live: LiveTensors,
    known: _native.TensorNames,
    model: nn.Module | None,
    optimizers: Iterable[Any],
    is_tracked: bool,
) -> tuple[list[str], TensorMemory]:
    """Names and memory of the tensors that Python holds, in the same order: the model's, the optimizers', the others.

    Tensors that no Python object refers to come last, or are left out on CUDA devices if the tracker tells what they are
    (`is_tracked`). Keeps no tensor.
    """
    named = _name(known, model, optimizers)
    others = live.all()
    if named:
        others = _native.without(others, list(named.values()))
    alone = held_by_pytorch_alone(others)
    hidden: list[Tensor] = []
    if any(alone):
        pairs = list(zip(others, alone, strict=True))
        hidden = [tensor for tensor, is_alone in pairs if is_alone and not (is_tracked and tensor.is_cuda)]
        others = [tensor for tensor, is_alone in pairs if not is_alone]
    names, memory = _memory(*_with_gradients(known, named, others), is_tracked)
    if hidden:
        gradients = {id(gradient) for _place, gradient in gradients_of([*named.values(), *others])}
        _add_hidden(known, names, memory, [tensor for tensor in hidden if id(tensor) not in gradients])
    known.forget_dead()
    return names, memory


def _memory(names: list[str], tensors: list[Tensor], is_tracked: bool) -> tuple[list[str], TensorMemory]:
    memory = memory_of_plain(tensors, is_tracked)
    if memory is None:
        names, tensors = with_parts(names, tensors)
        memory = memory_of_plain(tensors, is_tracked) or memory_of(tensors)
    return names, memory


def _add_hidden(known: _native.TensorNames, names: list[str], memory: TensorMemory, hidden: list[Tensor]) -> None:
    """Adds tensors that only PyTorch holds, unless others share their memory: the base of a view, for instance."""
    seen = set(memory.keys)
    for tensor in hidden:
        if not seen.isdisjoint(memory_of([part for _suffix, part in parts(tensor)]).keys):
            continue
        found, more = _memory(known.of([tensor]), [tensor], is_tracked=False)
        names += found
        memory.extend(more)


def _name(known: _native.TensorNames, model: nn.Module | None, optimizers: Iterable[Any]) -> dict[int, Tensor]:
    """Names the tensors of a model and of optimizers, and returns them by their id."""
    found = model_tensors(model) if model is not None else []
    tensors = {id(tensor): tensor for _name, tensor in found}
    known.give([name for name, _tensor in found], list(tensors.values()))
    classes: dict[str, int] = {}
    for optimizer in optimizers:
        label = type(optimizer).__name__
        classes[label] = classes.get(label, 0) + 1
        if classes[label] > 1:
            label += str(classes[label])
        for owner, state, path in optimizer_states(optimizer):
            prefix = label if owner is None else f"{label}.{known.of_one(owner)}"
            if not path and type(state) is dict and known.give_state(prefix, state, Tensor, tensors):
                continue
            for what, tensor in tensors_within(state, path):
                if id(tensor) not in tensors:
                    known.give([f"{prefix}.{what}"], [tensor])
                    tensors[id(tensor)] = tensor
    return tensors


def _with_gradients(
    known: _native.TensorNames, named: dict[int, Tensor], others: list[Tensor]
) -> tuple[list[str], list[Tensor]]:
    """Names and tensors, each with its gradient behind it: ``weight``, ``weight.grad``."""
    tensors = [*named.values(), *others]
    gradients = [(place, gradient) for place, gradient in gradients_of(tensors) if id(gradient) not in named]
    return known.with_gradients(tensors, gradients) if gradients else (known.of(tensors), tensors)
