"""The content of a storage at a point of a forward, and its way back in backward: kept, copied to the host, or
recomputed."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from memlab import _native
from memlab._activations.operations import replaced
from memlab._activations.views import View
from memlab._paging.tensor_memory import all_bytes
from memlab._paging.torch_private import StorageWeakRef, version_of, without_autocast

# The number of the operation that made a content, and the position of the output; or ("saved", n) for the n-th content
# without a known operation.
Key = tuple[Any, int]


class KeptTensor:
    """A tensor that stays in memory until backward, as autograd would keep it."""

    __slots__ = ("__weakref__", "tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.version = version_of(tensor)

    @property
    def is_unchanged(self) -> bool:
        return version_of(self.tensor) == self.version

    def unpack(self) -> Tensor:
        """Returns the tensor. Raises RuntimeError if it was written to, as autograd does."""
        if not self.is_unchanged:
            raise RuntimeError(
                f"a tensor that backward needs was changed in place after forward: {_described(self.tensor)} is at version "
                f"{version_of(self.tensor)}; expected version {self.version}. memlab.offload_activations also needs the "
                "inputs of recomputed activations unchanged; recompute=False lifts that"
            )
        return self.tensor

    def preserve(self) -> None:
        """Replaces the tensor by a copy of its values, before it is written to."""
        if not self.is_unchanged:
            return
        tensor = self.tensor
        if type(tensor) in (Tensor, nn.Parameter) and not (tensor.is_conj() or tensor.is_neg()):
            self.tensor = duplicate(tensor)
        else:
            self.tensor = tensor.clone()
        self.version = version_of(self.tensor)


def _described(tensor: Tensor) -> str:
    return f"[{tensor.device.type} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}]"


class PendingCopy:
    """A storage that is being copied to the host, and must stay until the copy is complete."""

    __slots__ = ("copy", "nbytes", "storage")

    def __init__(self, copy: _native.HostCopy, storage: torch.UntypedStorage) -> None:
        self.copy = copy
        self.storage: torch.UntypedStorage | None = storage
        self.nbytes = storage.nbytes()

    def release_copied(self, stream: int) -> int:
        """Makes `stream` wait for the copy, and frees the storage. Returns the freed bytes."""
        if self.storage is None:
            return 0
        self.copy.wait_saved(stream)
        self.storage = None
        return self.nbytes


class StorageContent:
    """The values of one storage between two writes to it."""

    __slots__ = (
        "__weakref__", "copy", "is_loading", "is_saved", "is_tracked", "is_written", "kept", "key", "left", "nbytes",
        "number", "pending_copy", "recomputation", "restored", "stream", "uses", "version", "weak",
    )  # fmt: skip

    def __init__(self, key: Key, number: int, storage: torch.UntypedStorage, version: int, *, is_written: bool) -> None:
        self.key = key
        # The position in the order in which a forward makes contents.
        self.number = number
        self.nbytes = storage.nbytes()
        # Lives as long as this object, so that no other storage gets this storage's key.
        self.weak = StorageWeakRef(storage)
        # Version of the tensors over it. PyTorch counts a write after its operation: then it is this version or the next.
        self.version = version
        self.is_written = is_written
        # True if autograd has saved a tensor over it.
        self.is_saved = False
        # One of `kept`, `copy` and `recomputation` restores it.
        self.kept: KeptTensor | None = None
        # True if its schedule follows the kept tensor: it may be copied to the host later, or its last read makes room.
        self.is_tracked = False
        self.copy: _native.HostCopy | None = None
        self.recomputation: Recomputation | None = None
        self.pending_copy: PendingCopy | None = None
        # The memory that holds it again, as long as it has readers left.
        self.restored: torch.UntypedStorage | None = None
        # True while a copy to that memory is pending, and the stream that owns the memory.
        self.is_loading = False
        self.stream = 0
        # Number of reads in a backward, and of those left.
        self.uses = 0
        self.left = 0

    def is_of(self, version: int) -> bool:
        """True if a tensor of this version shows this content, and not a later one."""
        if self.is_written and version == self.version + 1:
            self.version = version
        if version == self.version:
            self.is_written = False
            return True
        return False

    @property
    def is_restorable(self) -> bool:
        return self.kept is not None or self.copy is not None or self.recomputation is not None

    @property
    def needs_recomputation(self) -> bool:
        """True if an operation has to be repeated before the content can be read."""
        return self.kept is None and self.copy is None and self.restored is None

    def __del__(self, suppress: type[contextlib.suppress] = contextlib.suppress) -> None:
        # Kept as a default argument, since the interpreter clears the names of modules at its end.
        # Memory must not be reused while a copy writes to it.
        if getattr(self, "is_loading", False) and self.copy is not None:
            with suppress(Exception):  # The interpreter, or the device, may be going away.
                self.copy.wait_loaded(self.stream)

    def used(self) -> None:
        """Adds a reader."""
        self.uses += 1
        self.left += 1

    def served(self) -> None:
        """Removes a reader; after the last one the memory is free. (A second backward reads the content anew.)"""
        self.left -= 1
        if self.left <= 0:
            self.restored = None
            self.left = self.uses


class ViewArgument:
    """An argument of a repeated operation: a view of a content."""

    __slots__ = ("content", "view")

    def __init__(self, content: StorageContent, view: View) -> None:
        self.content = content
        self.view = view


class ScratchArgument:
    """An argument that an operation only writes to: running statistics of a batch norm in training."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


_NOTED = (ViewArgument, KeptTensor, ScratchArgument)


class Recomputation:
    """An operation that is repeated in backward, since its results are not kept."""

    __slots__ = ("arguments", "contents", "is_in_place", "keywords", "operation", "outputs")

    def __init__(
        self,
        operation: Any,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        argument_of: Callable[[Tensor], ViewArgument | KeptTensor | ScratchArgument],
        outputs: list[StorageContent | None],
        *,
        is_in_place: bool,
    ) -> None:
        self.operation = operation
        self.is_in_place = is_in_place
        self.contents: list[StorageContent] = []

        def noted(tensor: Tensor) -> ViewArgument | KeptTensor | ScratchArgument:
            argument = argument_of(tensor)
            if isinstance(argument, ViewArgument):
                self.contents.append(argument.content)
            return argument

        self.arguments = replaced(arguments, Tensor, noted)
        self.keywords = replaced(keywords, Tensor, noted)
        self.outputs = [None if content is None else weakref.ref(content) for content in outputs]

    def missing(self) -> list[StorageContent]:
        """The contents that must be recomputed before this operation can run."""
        return [content for content in self.contents if content.needs_recomputation]

    def run(self, restore: Callable[[StorageContent], torch.UntypedStorage]) -> None:
        """Runs the operation, and attaches its results to the contents."""

        def argument(noted: ViewArgument | KeptTensor | ScratchArgument) -> Tensor:
            if isinstance(noted, KeptTensor):
                return noted.unpack()
            if isinstance(noted, ScratchArgument):
                return torch.zeros_like(noted.tensor)
            return noted.view.over(restore(noted.content))

        arguments, keywords = replaced((self.arguments, self.keywords), _NOTED, argument)
        if self.is_in_place:
            # Runs on a copy, since others read the overwritten values. (The out-of-place operation could change types or
            # strides.)
            arguments = (duplicate(arguments[0]), *arguments[1:])
        with torch.no_grad(), without_autocast():
            results = self.operation(*arguments, **keywords)
        for reference, tensor in zip(self.outputs, outputs_of(results), strict=True):
            content = None if reference is None else reference()
            if content is not None and content.recomputation is self and content.left > 0:
                storage = tensor.untyped_storage()
                if storage.nbytes() != content.nbytes:
                    raise RuntimeError(
                        f"{self.operation} returned a different result when it ran again; use recompute=False"
                    )
                content.restored = storage


def duplicate(tensor: Tensor) -> Tensor:
    """A copy of a tensor's whole storage, viewed with the same strides, since rounding may depend on them."""
    return View.of(tensor).over(all_bytes(tensor.untyped_storage()).clone().untyped_storage())


def outputs_of(results: Any) -> list[Any]:
    """The results of an operation as a list of tensors and other values."""
    return list(results) if isinstance(results, (tuple, list)) else [results]
