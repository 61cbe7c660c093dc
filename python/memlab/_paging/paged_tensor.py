"""Weights, the model's tensors over them, and the entries of modules that hold these.

A **weight** is a storage: the bytes that are copied together. Tied parameters are one tensor in two modules. Shared
parameters are two tensors over one weight. Both work, because the weight is copied as a whole. Each tensor of the model
(`PagedTensor`) has up to three forms, which are swapped where modules hold them:

* *original*: the model's own Parameter, on the CPU, over the arena. Modules hold it outside of forwards, so that
  ``state_dict``, ``named_parameters``, edits, pickling and copies see the true values.
* *mapped*: the same bytes as a tensor of the device, which reads them over the bus, because the arena is pinned. Modules
  hold it in a forward while the weight is not loaded: an unforeseen read is correct, but slow.
* *on device*: the weight's copy in device memory. Modules hold it in a forward while the weight is loaded.
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from memlab._paging.tensor_memory import Layout, layout_of, view_of
from memlab._paging.torch_private import TENSOR_DICTS, has_gradient_hook, storage_key, use_count, version_of

ALIGNMENT = 512  # Of a weight, in the arena and on the device.


@dataclass(eq=False)
class ModuleEntry:
    """Place of a tensor in a module: a key of `_parameters` or `_buffers`, or an index of a list among its attributes."""

    module: nn.Module
    attribute: str  # "_parameters", "_buffers", or the name of the list.
    key: str | int
    is_weak: bool = False  # nn.LSTM keeps weak references, to detect replaced weights.

    def put(self, tensor: Tensor) -> None:
        self.module.__dict__[self.attribute][self.key] = weakref.ref(tensor) if self.is_weak else tensor


@dataclass(eq=False)
class Weight:
    """A storage of the model: bytes in the arena that are copied as one."""

    index: int
    nbytes: int
    tensors: list[PagedTensor] = field(default_factory=list)
    offset: int = 0  # In the arena.
    arena_storage: torch.UntypedStorage | None = None  # Its bytes, as memory of the CPU.
    own_use_count: int = 0  # Number of users of that storage that are the model's own tensors.
    shared: bool = False  # Other processes of the host map the same memory, which is read-only.
    separate: bool = False  # Its tensors have one storage each where the model is not paged.
    other_stretches: int = 0  # Number of other devices that have the same bytes as their own weight.
    mapped_storage: torch.UntypedStorage | None = None  # Its bytes, as memory of the device, if the device can read them.

    @property
    def name(self) -> str:
        return self.tensors[0].name

    @property
    def padded_nbytes(self) -> int:
        """Bytes used in the arena and on the device."""
        return -(-self.nbytes // ALIGNMENT) * ALIGNMENT

    @property
    def parameters(self) -> int:
        return max((paged.tensor.numel() for paged in self.tensors), default=0)

    @property
    def is_trained(self) -> bool:
        """Returns True if backward would compute a gradient for it, with gradients enabled."""
        # A buffer that a forward has written to with a gradient requires one too, but is no leaf.
        return any(paged.tensor.requires_grad and paged.tensor.is_leaf for paged in self.tensors)

    def drop_references(self) -> None:
        """Drops all references to the model's tensors and to memory, so that the next pager does not see other users."""
        for paged in self.tensors:
            paged.unloaded = paged.on_device = None
            paged.tensor = torch.empty(0)
        self.mapped_storage = self.arena_storage = None


@dataclass(eq=False)
class PagedTensor:
    """A tensor of the model, its forms, and every module entry that holds it."""

    name: str
    tensor: Tensor  # The model's own.
    weight: Weight
    byte_offset: int  # From the weight's first byte.
    entries: list[ModuleEntry]
    unloaded: Tensor | None = None  # The form for forwards while the weight is not loaded; `on_device` if it stays there.
    on_device: Tensor | None = None
    version: int = 0
    address: int = 0
    layout: Layout | None = None  # When the model was paged.
    other_holders: int = 0  # Entries and paged tensors of other devices that hold the same tensor.

    def view_over(self, storage: torch.UntypedStorage) -> Tensor:
        """Returns this tensor, with its layout at paging, over other memory.

        The first byte of that memory is the weight's.
        """
        dtype, shape, stride = self.layout or layout_of(self.tensor)
        return view_of(storage, dtype, self.byte_offset // dtype.itemsize, shape, stride)

    def twin_over(self, storage: torch.UntypedStorage) -> Tensor:
        """Returns `view_over` as a Parameter or buffer, as the model holds it, with its attributes and `requires_grad`.

        `requires_grad` influences the choice of kernels, and with it the last bits, even where no gradient is computed
        (``torch.matmul`` folds batches for a weight that requires one).
        """
        tensor = self.view_over(storage)
        if isinstance(self.tensor, nn.Parameter):
            tensor = nn.Parameter(tensor, requires_grad=self.tensor.requires_grad)
        tensor.__dict__.update(self.tensor.__dict__)
        return tensor

    def form_over(self, storage: torch.UntypedStorage) -> Tensor:
        """Returns `twin_over` in a form for forwards: it refuses gradients, which its owner would not find."""
        tensor = self.twin_over(storage)
        _refuse_gradient(tensor)
        return tensor

    def forms(self) -> tuple[Tensor | None, ...]:
        """Returns all forms that modules may hold."""
        return self.tensor, self.unloaded, self.on_device

    def follow_requires_grad(self) -> None:
        """Makes all forms require a gradient if the model's own tensor does. `requires_grad_` may have been called."""
        required = self.tensor.requires_grad
        for form in (self.unloaded, self.on_device):
            # A form that a forward has written to with a gradient is no longer a leaf, and therefore requires a gradient.
            if form is None or form is self.tensor or form.requires_grad == required or not form.is_leaf:
                continue
            form.requires_grad_(required)
            _refuse_gradient(form)

    @property
    def is_read_unseen(self) -> bool:
        """Returns True if code may hold it, or get it, without a record.

        The holders of a tensor without a place are not counted. It can also be read from a list, from a weight paged to
        another device, or through a weak reference.
        """
        is_elsewhere = any(entry.attribute not in TENSOR_DICTS for entry in self.entries)
        has_no_place = self.on_device is None
        return has_no_place or self.other_holders > 0 or is_elsewhere or weakref.getweakrefcount(self.tensor) > 0

    def has_other_users(self) -> bool:
        """Returns True if code outside the model holds the tensor or its memory, and can write to it unseen."""
        storage = self.weight.arena_storage
        assert storage is not None
        known = (
            sum(not entry.is_weak for entry in self.entries) + self.other_holders + 2
        )  # And `self.tensor`, and the call's argument.
        others = use_count(storage_key(storage)) > self.weight.own_use_count
        return others or sys.getrefcount(self.tensor) > known

    def mark_known(self) -> None:
        """Stores the present content as known. `is_written` and `is_edited` compare with it."""
        self.version = version_of(self.tensor)
        self.address = self.tensor.data_ptr()
        self.layout = self.layout or layout_of(self.tensor)

    def is_written(self) -> bool:
        """Returns True if it was written, or given other memory, since `mark_known`."""
        return version_of(self.tensor) != self.version or self.tensor.data_ptr() != self.address

    def has_other_layout(self) -> bool:
        """Returns True if its type, shape or strides changed, as by ``w.data = w.data.t()``."""
        assert self.layout is not None
        (dtype, shape, stride), (now, shape_now, stride_now) = self.layout, layout_of(self.tensor)
        # The stride of a dimension of one element has no meaning.
        strides = zip(shape, stride, stride_now, strict=True)
        return dtype != now or shape != shape_now or any(size > 1 and one != other for size, one, other in strides)

    def is_edited(self) -> bool:
        return self.is_written() or self.has_other_layout()


def shared_write(names: list[str]) -> RuntimeError:
    """Returns the error for a forward that writes to weights that other processes read too."""
    return RuntimeError(
        f"a forward wrote to {', '.join(names)}, which other processes of this host read too, and which keeps its value: "
        'page a model that writes to its parameters without shared="host"'
    )


def _refuse_gradient(tensor: Tensor) -> None:
    """Makes backward raise when it computes a gradient of the tensor."""
    if tensor.requires_grad and not has_gradient_hook(tensor):
        tensor.register_hook(_raise_for_gradient)


def _raise_for_gradient(_: Tensor) -> None:
    raise RuntimeError(
        "a gradient was asked for a weight of a paged model, which would be lost: freeze the weights "
        "(model.requires_grad_(False)), call the model with gradients enabled if these train beside frozen ones, or unpage "
        "the model to train it"
    )
