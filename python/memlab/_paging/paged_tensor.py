"""What of a model is paged: its weights, the tensors that are views of them, and where modules hold these.

A **weight** is a storage: the bytes that are copied together. Tied parameters are one tensor held in two places, shared
ones two tensors over one weight; both come out right because the weight is what is looked at. Each tensor that the
model holds (`Home`) has up to three forms, swapped where modules hold them:

* *home*: the model's own Parameter, on the CPU, its bytes in the arena. What is there outside of a forward, so that
  ``state_dict``, ``named_parameters``, edits, pickling and copies work on the truth.
* *reachable*: the same bytes as a tensor of the device (the arena is pinned, so a GPU can read it over the bus). What
  is there during a forward while the weight is not loaded: right for whoever reads it unexpectedly, but slow.
* *here*: the same at its place in device memory. What is there while the weight is loaded.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from memlab import _native
from memlab._paging.recurrent import cudnn_layout, weights_of

# The dictionaries in which a module holds its tensors.
KINDS = ("_parameters", "_buffers")
ALIGNMENT = 512
# What is pinned at a time, and what that begins at a multiple of.
CHUNK = 1 << 30
PAGE = 4096
# Buffers below this stay on the device: running statistics, frequencies, masks. They may be written at any time.
SMALL_BUFFER = 1 << 20

Layout = tuple[torch.dtype, Sequence[int], Sequence[int]]  # Type, shape and strides of a tensor.


@dataclass(eq=False)
class Home:
    """A tensor of the model, and every place that holds it."""

    name: str
    tensor: Tensor
    weight: Weight
    byte_offset: int  # From the weight's first byte.
    places: list[Place]
    resting: Tensor | None = None  # What a forward finds while the weight is not loaded: reachable, or here if it stays.
    here: Tensor | None = None
    version: int = 0
    address: int = 0
    layout: Layout | None = None  # When the model was paged.

    def over(self, storage: torch.UntypedStorage) -> Tensor:
        """This tensor, as it was when the model was paged, over other memory, whose first byte is the weight's."""
        dtype, shape, stride = self.layout or layout_of(self.tensor)
        return view_of(storage, dtype, self.byte_offset // dtype.itemsize, shape, stride)

    def clothed(self, storage: torch.UntypedStorage) -> Tensor:
        """The same as what the model holds: a Parameter or a buffer, with the attributes people put on it.

        Whether it requires a gradient decides of kernels, and so of the last bits, also where no gradient is computed
        (``torch.matmul`` folds batches for a weight that does).
        """
        tensor = self.over(storage)
        if isinstance(self.tensor, nn.Parameter):
            tensor = nn.Parameter(tensor, requires_grad=self.tensor.requires_grad)
        tensor.__dict__.update(self.tensor.__dict__)
        return tensor

    def form(self, storage: torch.UntypedStorage) -> Tensor:
        """The same for forwards to find: one whose gradient nobody would look for."""
        tensor = self.clothed(storage)
        _refuse_gradient(tensor)
        return tensor

    def forms(self) -> tuple[Tensor | None, ...]:
        """All that modules may hold of it."""
        return self.tensor, self.resting, self.here

    def require_alike(self) -> None:
        """All forms require a gradient if the model's own does (`requires_grad_` may have been called since)."""
        required = self.tensor.requires_grad
        for form in (self.resting, self.here):
            # (What a forward has written to with a gradient is no leaf any more, and requires one by that.)
            if form is None or form is self.tensor or form.requires_grad == required or not form.is_leaf:
                continue
            form.requires_grad_(required)
            _refuse_gradient(form)

    def held_elsewhere(self) -> bool:
        """Whether somebody but the model holds the tensor or its memory, and may write to it without a trace."""
        storage = self.weight.in_arena
        assert storage is not None
        known = sum(not place.weakly for place in self.places) + 2  # And `self.tensor`, and the argument of the call.
        others = torch._C._storage_Use_Count(storage._cdata) > self.weight.users
        return others or sys.getrefcount(self.tensor) > known

    def remember(self) -> None:
        """Takes the present content for what is known."""
        self.version = version_of(self.tensor)
        self.address = self.tensor.data_ptr()
        self.layout = self.layout or layout_of(self.tensor)

    def changed(self) -> bool:
        """Whether it was written, or given other memory, since `remember`."""
        return version_of(self.tensor) != self.version or self.tensor.data_ptr() != self.address

    def laid_out_anew(self) -> bool:
        """Whether it has another type, shape or other strides than it had, as after ``w.data = w.data.t()``."""
        assert self.layout is not None
        (dtype, shape, stride), (now, shape_now, stride_now) = self.layout, layout_of(self.tensor)
        # (The stride of a dimension of one element means nothing.)
        strides = zip(shape, stride, stride_now, strict=True)
        return dtype != now or shape != shape_now or any(size > 1 and one != other for size, one, other in strides)

    def edited(self) -> bool:
        """Whether anything of it is other than it was."""
        return self.changed() or self.laid_out_anew()


@dataclass(eq=False)
class Weight:
    """A storage of the model: bytes that live in the arena and are copied as one."""

    index: int
    nbytes: int
    homes: list[Home] = field(default_factory=list)
    offset: int = 0  # In the arena.
    in_arena: torch.UntypedStorage | None = None  # Its bytes, as memory of the CPU.
    users: int = 0  # Of that storage: what the model's own tensors come to.
    apart: bool = False  # Its tensors share no memory where the model is not paged.
    reachable_storage: torch.UntypedStorage | None = None  # The same as memory of the device, if that can reach it.

    @property
    def name(self) -> str:
        return self.homes[0].name

    @property
    def span(self) -> int:
        """Bytes taken in the arena and on the device."""
        return -(-self.nbytes // ALIGNMENT) * ALIGNMENT

    @property
    def trains(self) -> bool:
        """Whether a gradient of it would be computed, were they enabled."""
        # (A buffer that a forward has written to with a gradient requires one as well, and is no leaf.)
        return any(home.tensor.requires_grad and home.tensor.is_leaf for home in self.homes)

    def let_go(self) -> None:
        """Drops all references to the model's tensors and to memory, which a next pager would take for somebody's."""
        for home in self.homes:
            home.resting = home.here = None
            home.tensor = torch.empty(0)
        self.reachable_storage = self.in_arena = None

    @property
    def parameters(self) -> int:
        return max((home.tensor.numel() for home in self.homes), default=0)


@dataclass(eq=False)
class Place:
    """Where a module holds a tensor: an entry of `_parameters` or `_buffers`, or of a list among its attributes."""

    module: nn.Module
    kind: str  # "_parameters", "_buffers", or the name of an attribute that is a list.
    key: str | int
    weakly: bool = False  # nn.LSTM keeps weak references, to find out whether its weights were exchanged.

    def put(self, tensor: Tensor) -> None:
        self.module.__dict__[self.kind][self.key] = weakref.ref(tensor) if self.weakly else tensor


def layout_of(tensor: Tensor) -> Layout:
    return tensor.dtype, tensor.shape, tensor.stride()


def _refuse_gradient(tensor: Tensor) -> None:
    """Has whoever computes a gradient of it be told."""
    if tensor.requires_grad and not tensor._backward_hooks:
        tensor.register_hook(_refused)


def _refused(_: Tensor) -> None:
    raise RuntimeError(
        "a gradient was asked for a weight of a paged model, which is not where its owner would find it: freeze the "
        "weights (model.requires_grad_(False)), call the model with gradients enabled if these train beside frozen ones, or "
        "unpage the model to train it"
    )


def version_of(tensor: Tensor) -> int:
    """What PyTorch counts up with each operation that writes to the tensor. Made in inference mode, it is not counted."""
    try:
        return tensor._version
    except RuntimeError:
        return 0


def versions_of(tensors: list[Tensor]) -> list[int]:
    """`version_of` each, at a twentieth of a microsecond."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:
        return [version_of(tensor) for tensor in tensors]


def tensors_of(model: nn.Module) -> Iterator[tuple[str, Tensor, Place]]:
    """Every parameter and buffer with each of its places."""
    for prefix, module in model.named_modules():
        dot = prefix + "." if prefix else ""
        for kind in KINDS:
            for key, tensor in module.__dict__[kind].items():
                if tensor is not None:
                    yield dot + key, tensor, Place(module, kind, key)
        # nn.LSTM and its kin hold their parameters in lists as well.
        for attribute, held in list(module.__dict__.items()):
            if type(held) is list:
                for index, entry in enumerate(held):
                    weakly = isinstance(entry, weakref.ref)
                    tensor = entry() if weakly else entry
                    if isinstance(tensor, nn.Parameter):
                        yield f"{dot}{attribute}.{index}", tensor, Place(module, attribute, index, weakly)


def pageable(tensor: Tensor) -> bool:
    """Whether a tensor is plain memory: not a subclass that hides what it holds (quantized, distributed), not sparse."""
    plain = type(tensor) in (Tensor, nn.Parameter, nn.Buffer) and tensor.layout is torch.strided
    if not plain or tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.numel() == 0:
        return False
    # Expanded: several elements are one, which cannot be written to.
    return all(stride > 0 or size == 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def extent(tensor: Tensor) -> tuple[int, int]:
    """First and last byte (exclusive) that a tensor uses of its storage."""
    if tensor.numel() == 0:
        return 0, 0
    first = tensor.storage_offset()
    last = first + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return first * tensor.element_size(), last * tensor.element_size()


def collect(model: nn.Module, laid_out_for: torch.device | None = None) -> tuple[list[Weight], list[list[Tensor]]]:
    """The weights to be paged, in the order of registration, and the tensors that are kept on the device instead.

    Kept are small buffers and tensors that are not plain memory. Tensors that share their memory share its fate, and come
    in one list. Those of an LSTM, which share none on the CPU, are one weight in the layout that a device wants them in.
    """
    places: dict[int, tuple[str, Tensor, list[Place]]] = {}
    for name, tensor, place in tensors_of(model):
        places.setdefault(id(tensor), (name, tensor, []))[2].append(place)

    by_storage: dict[int, list[tuple[str, Tensor, list[Place]]]] = {}
    kept: list[list[Tensor]] = []
    for name, tensor, where in places.values():
        if isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer)):
            raise ValueError(f"{name} is not initialized yet: run a lazy module once before it is paged")
        if tensor.is_meta:
            raise ValueError(f"{name} has no values (it is on the meta device): give the model weights with memlab.load")
        if pageable(tensor):
            by_storage.setdefault(tensor.untyped_storage()._cdata, []).append((name, tensor, where))
        else:
            kept.append([tensor])
    flat = _lay_out_recurrent(model, laid_out_for, by_storage) if laid_out_for is not None else {}
    weights: list[Weight] = []
    for key, group in by_storage.items():
        tensors = [tensor for _, tensor, _ in group]
        buffers = all(not isinstance(tensor, nn.Parameter) for tensor in tensors)
        if buffers and max(tensor.untyped_storage().nbytes() for tensor in tensors) < SMALL_BUFFER:
            kept.append(tensors)
        else:
            weights.append(flat[key](len(weights)) if key in flat else _weight(len(weights), group))
    return weights, kept


def _lay_out_recurrent(
    model: nn.Module, device: torch.device, by_storage: dict[int, list[tuple[str, Tensor, list[Place]]]]
) -> dict[int, Callable[[int], Weight]]:
    """Has the tensors of each LSTM, GRU and RNN be one weight, as cuDNN wants them. By storage: what makes it."""
    flat: dict[int, Callable[[int], Weight]] = {}
    for module in model.modules():
        if not isinstance(module, nn.RNNBase):
            continue
        keys = [tensor.untyped_storage()._cdata for tensor in weights_of(module)]
        if not keys or any(len(by_storage.get(key, ())) != 1 for key in keys):
            continue  # Shared with others, or laid out so already.
        group = [by_storage[key][0] for key in keys]
        found = cudnn_layout(module, device)
        if found is not None:
            for key in keys[1:]:
                del by_storage[key]
            by_storage[keys[0]] = group
            flat[keys[0]] = partial(_weight, group=group, layout=found)
    return flat


def move_together(tensors: list[Tensor], device: torch.device) -> None:
    """Moves tensors that share their memory, which they go on doing. In place; gradients come along."""
    if not pageable(tensors[0]):
        for tensor in tensors:
            tensor.data = tensor.detach().to(device)
    else:
        storage = tensors[0].untyped_storage()
        if storage.device == device:
            return
        moved = all_bytes(storage).to(device).untyped_storage()
        for tensor in tensors:
            tensor.data = view_of(moved, tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride())
    for tensor in tensors:
        if tensor.is_leaf and tensor.grad is not None:
            tensor.grad = tensor.grad.to(device)


def _weight(index: int, group: list[tuple[str, Tensor, list[Place]]], layout: tuple[list[int], int] | None = None) -> Weight:
    """Tensors that are views of one storage, or are to become that: where each begins, and bytes in all."""
    apart = layout is not None
    if layout is None:
        extents = [extent(tensor) for _, tensor, _ in group]
        # Views keep their alignment: the first byte is one of a multiple of what any element takes.
        first = min(first for first, _ in extents) // ALIGNMENT * ALIGNMENT
        layout = [start - first for start, _ in extents], max(last for _, last in extents) - first
    starts, nbytes = layout
    weight = Weight(index, nbytes, apart=apart)
    for (name, tensor, where), start in zip(group, starts, strict=True):
        weight.homes.append(Home(name, tensor, weight, start, where))
    return weight


def arena_for(weights: list[Weight]) -> _native.Arena:
    """Gives each weight its place, one after the other, in an arena made for them.

    The system pins no more than a GiB or so at a time, and a copy across such a border is refused by the driver: borders
    lie between weights.
    """
    offset, began, borders = 0, 0, []
    for weight in weights:
        if offset > began and offset + weight.span - began > CHUNK:
            offset = began = -(-offset // PAGE) * PAGE
            borders.append(offset)
        weight.offset = offset
        offset += weight.span
    return _native.Arena(offset, borders)


class Bytes:
    """The arena as storages: of the CPU, and, where the system has pinned it, of the GPU that reads it over the bus."""

    def __init__(self, arena: _native.Arena) -> None:
        self.arena = arena
        memory = (ctypes.c_char * max(arena.nbytes, 1)).from_address(arena.address)
        memory.arena = arena  # type: ignore[attr-defined]  # The storage keeps its memory alive.
        self.storage = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()

    def of(self, weight: Weight) -> torch.UntypedStorage:
        """A weight's bytes as a storage of their own, so that saving one tensor does not save them all."""
        return self.storage[weight.offset : weight.offset + weight.span]

    def of_home(self, home: Home) -> torch.UntypedStorage:
        """A tensor's bytes by themselves."""
        start = home.weight.offset + home.byte_offset
        return self.storage[start : start + home.tensor.nbytes]

    def on(self, device: torch.device, weight: Weight) -> torch.UntypedStorage:
        """The same bytes as the device sees them; needs a pinned arena unless the device is the CPU."""
        if device.type == "cpu":
            return self.of(weight)
        window = _Window(self.arena, self.arena.address + weight.offset, weight.span)
        return torch.as_tensor(window, device=device).untyped_storage()


class _Window:
    """Pinned host memory, in the words in which PyTorch takes memory of other libraries."""

    def __init__(self, arena: _native.Arena, address: int, nbytes: int) -> None:
        self.arena = arena
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }


def move_in(weights: list[Weight], memory: Bytes) -> None:
    """Moves the weights' bytes into the arena, one after the other, so that the host never holds them twice."""
    for weight in weights:
        storage = memory.of(weight)
        for home in weight.homes:
            source = home.tensor.detach()
            if source.device.type != "cpu":
                source = source.cpu()
            view = home.over(storage)
            if source.is_contiguous() and view.is_contiguous():
                start = storage.data_ptr() - memory.arena.address + home.byte_offset
                memory.arena.fill(start, source.data_ptr(), source.nbytes)
            else:
                view.copy_(source)
        settle_in(weight, memory)


def settle_in(weight: Weight, memory: Bytes) -> None:
    """Makes the model's own tensors views of the arena."""
    weight.in_arena = memory.of(weight)
    for home in weight.homes:
        if home.tensor.is_inference():
            # Its memory cannot be exchanged: another tensor of the same kind takes its places.
            home.tensor = home.clothed(weight.in_arena)
            for place in home.places:
                place.put(home.tensor)
        else:
            home.tensor.data = home.over(weight.in_arena)
        home.remember()
    weight.users = torch._C._storage_Use_Count(weight.in_arena._cdata)


def view_of(
    storage: torch.UntypedStorage, dtype: torch.dtype, offset: int, shape: Sequence[int], stride: Sequence[int]
) -> Tensor:
    """A tensor over memory that is there; `offset` counts elements."""
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, tuple(shape), tuple(stride))


def all_bytes(storage: torch.UntypedStorage) -> Tensor:
    """A storage as a tensor of bytes."""
    return view_of(storage, torch.uint8, 0, (storage.nbytes(),), (1,))
