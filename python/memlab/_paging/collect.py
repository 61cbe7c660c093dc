"""Finds the weights of a model, and the tensors that are resident instead of paged."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from memlab._paging.paged_tensor import ALIGNMENT, ModuleEntry, PagedTensor, Weight
from memlab._paging.recurrent import cudnn_layout, weights_of
from memlab._paging.tensor_memory import extent, is_plain
from memlab._paging.torch_private import TENSOR_DICTS, storage_key

# Smaller buffers are resident: running statistics, frequencies, masks. They may be written at any time.
SMALL_BUFFER = 1 << 20

_Found = tuple[str, Tensor, list[ModuleEntry]]  # A tensor, its first name, and the entries that hold it.


def tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor, ModuleEntry]]:
    """Yields every parameter and buffer, once for each entry that holds it."""
    for prefix, module in model.named_modules():
        dot = prefix + "." if prefix else ""
        for attribute in TENSOR_DICTS:
            for key, tensor in module.__dict__[attribute].items():
                if tensor is not None:
                    yield dot + key, tensor, ModuleEntry(module, attribute, key)
        # nn.LSTM, nn.GRU and nn.RNN hold their parameters in lists too.
        for attribute, held in list(module.__dict__.items()):
            if type(held) is list:
                for index, entry in enumerate(held):
                    is_weak = isinstance(entry, weakref.ref)
                    tensor = entry() if is_weak else entry
                    if isinstance(tensor, nn.Parameter):
                        yield f"{dot}{attribute}.{index}", tensor, ModuleEntry(module, attribute, index, is_weak)


def collect(
    model: nn.Module, rnn_layout_for: torch.device | None = None, *, small_buffers_stay: bool = True
) -> tuple[list[Weight], list[list[Tensor]]]:
    """Returns the weights to page, in the order of registration, and the residents: tensors that stay on the device.

    Residents are small buffers and tensors that are not plain memory. Residents over one storage come in one list. The
    tensors of an nn.LSTM, which have one storage each on the CPU, become one weight in the layout for `rnn_layout_for`.

    Raises: ValueError that names tensors without values.
    """
    found: dict[int, _Found] = {}
    for name, tensor, entry in tensors_of(model):
        found.setdefault(id(tensor), (name, tensor, []))[2].append(entry)

    by_storage: dict[int, list[_Found]] = {}
    residents: list[list[Tensor]] = []
    for name, tensor, entries in found.values():
        if isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer)):
            raise ValueError(f"{name} is not initialized yet: run a lazy module once before it is paged")
        if tensor.is_meta:
            raise ValueError(f"{name} has no values (it is on the meta device): give the model weights with memlab.load")
        if is_plain(tensor):
            by_storage.setdefault(storage_key(tensor.untyped_storage()), []).append((name, tensor, entries))
        else:
            residents.append([tensor])
    makers = _rnn_weights(model, rnn_layout_for, by_storage) if rnn_layout_for is not None else {}
    weights: list[Weight] = []
    for key, group in by_storage.items():
        tensors = [tensor for _, tensor, _ in group]
        buffers = all(not isinstance(tensor, nn.Parameter) for tensor in tensors)
        if buffers and small_buffers_stay and max(tensor.untyped_storage().nbytes() for tensor in tensors) < SMALL_BUFFER:
            residents.append(tensors)
        else:
            weights.append(makers[key](len(weights)) if key in makers else _weight(len(weights), group))
    return weights, residents


def _rnn_weights(
    model: nn.Module, device: torch.device, by_storage: dict[int, list[_Found]]
) -> dict[int, Callable[[int], Weight]]:
    """Joins the tensors of each nn.LSTM, nn.GRU and nn.RNN in `by_storage`.

    Returns functions that create the weights, by storage.
    """
    makers: dict[int, Callable[[int], Weight]] = {}
    for module in model.modules():
        if not isinstance(module, nn.RNNBase):
            continue
        keys = [storage_key(tensor.untyped_storage()) for tensor in weights_of(module)]
        if not keys or any(len(by_storage.get(key, ())) != 1 for key in keys):
            continue  # Shared with other modules, or already in one piece.
        group = [by_storage[key][0] for key in keys]
        layout = cudnn_layout(module, device)
        if layout is not None:
            for key in keys[1:]:
                del by_storage[key]
            by_storage[keys[0]] = group
            makers[keys[0]] = partial(_weight, group=group, layout=layout)
    return makers


def _weight(index: int, group: list[_Found], layout: tuple[list[int], int] | None = None) -> Weight:
    """Creates a weight of tensors over one storage, or of separate ones with `layout`: starts and total bytes."""
    separate = layout is not None
    if layout is None:
        extents = [extent(tensor) for _, tensor, _ in group]
        # Round down, so that views keep their alignment.
        first = min(first for first, _ in extents) // ALIGNMENT * ALIGNMENT
        layout = [start - first for start, _ in extents], max(last for _, last in extents) - first
    starts, nbytes = layout
    weight = Weight(index, nbytes, separate=separate)
    for (name, tensor, entries), start in zip(group, starts, strict=True):
        weight.tensors.append(PagedTensor(name, tensor, weight, start, entries))
    return weight
