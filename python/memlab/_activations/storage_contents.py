"""What a storage holds at a point of a forward, and how backward gets it back: kept, copied to the host, or made again."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from memlab import _native
from memlab._activations.views import View
from memlab._paging.tensor_memory import all_bytes
from memlab._paging.torch_private import StorageWeakRef, tree_leaves, tree_map_only, version_of, without_autocast

# Which operation of a forward made it, and which of its outputs it is; or ("saved", n): the n-th of those that no operation
# is known of.
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
        """Raises RuntimeError if it was written to, as autograd does."""
        if not self.is_unchanged:
            raise RuntimeError(
                f"a tensor that backward needs was changed in place after forward: {_described(self.tensor)} is at version "
                f"{version_of(self.tensor)}; expected version {self.version}. memlab.offload_activations also needs the "
                "inputs of recomputed activations unchanged; recompute=False lifts that"
            )
        return self.tensor

    def preserve(self) -> None:
        """It is about to be written to, and stays as it is: a copy does."""
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
    """A storage that is being copied to the host, and must stay until it is there."""

    __slots__ = ("copy", "nbytes", "storage")

    def __init__(self, copy: _native.HostCopy, storage: torch.UntypedStorage) -> None:
        self.copy = copy
        self.storage: torch.UntypedStorage | None = storage
        self.nbytes = storage.nbytes()

    def release_copied(self, stream: int) -> int:
        """Has `stream` wait for the copy, after which the storage may go. Returns the bytes that are free then."""
        if self.storage is None:
            return 0
        self.copy.wait_saved(stream)
        self.storage = None
        return self.nbytes


class StorageContent:
    """What one storage holds between two writes to it."""

    __slots__ = (
        "__weakref__", "copy", "is_loading", "is_saved", "is_written", "kept", "key", "left", "may_leave", "nbytes",
        "number", "pending_copy", "recomputation", "restored", "stream", "uses", "version", "weak",
    )  # fmt: skip

    def __init__(self, key: Key, number: int, storage: torch.UntypedStorage, version: int, *, is_written: bool) -> None:
        self.key = key
        # In the order in which a forward makes them.
        self.number = number
        self.nbytes = storage.nbytes()
        # Alive as long as this object, so that the storage's number is no other's.
        self.weak = StorageWeakRef(storage)
        # Of the tensors over it. PyTorch counts a write when its operation is over: then it is this version or the next.
        self.version = version
        self.is_written = is_written
        # Whether autograd has saved a tensor over it.
        self.is_saved = False
        # One of these says how it comes back.
        self.kept: KeptTensor | None = None
        # Whether what is kept may be copied to the host later.
        self.may_leave = False
        self.copy: _native.HostCopy | None = None
        self.recomputation: Recomputation | None = None
        self.pending_copy: PendingCopy | None = None
        # The memory that it is in again, as long as something is still to read it there.
        self.restored: torch.UntypedStorage | None = None
        # Whether a copy to there is not waited for yet, and the stream whose memory it is.
        self.is_loading = False
        self.stream = 0
        # How often it is read in a backward, and how often it still will be.
        self.uses = 0
        self.left = 0

    def is_of(self, version: int) -> bool:
        """Whether a tensor of this version shows it, and not what was written since."""
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
        """Whether an operation has to run again before it can be read."""
        return self.kept is None and self.copy is None and self.restored is None

    def __del__(self, suppress: type[contextlib.suppress] = contextlib.suppress) -> None:
        # A default argument outlives the names of modules, which the interpreter clears at its end.
        # Memory must not be someone else's while a copy writes to it.
        if getattr(self, "is_loading", False) and self.copy is not None:
            with suppress(Exception):  # The interpreter, or the device, may be going away.
                self.copy.wait_loaded(self.stream)

    def used(self) -> None:
        """Takes note of one more reader."""
        self.uses += 1
        self.left += 1

    def served(self) -> None:
        """One of the readers has it; after the last one the memory is free. (A second backward reads it anew.)"""
        self.left -= 1
        if self.left <= 0:
            self.restored = None
            self.left = self.uses


class ViewArgument:
    """An argument of an operation that will run again: a view of a content."""

    __slots__ = ("content", "view")

    def __init__(self, content: StorageContent, view: View) -> None:
        self.content = content
        self.view = view


class ScratchArgument:
    """An argument that an operation only writes to: running statistics of a batch norm in training."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Recomputation:
    """An operation that runs again in backward, as its results are not kept."""

    __slots__ = ("arguments", "is_in_place", "keywords", "operation", "outputs")

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
        self.arguments, self.keywords = tree_map_only(Tensor, argument_of, (arguments, keywords))
        self.outputs = [None if content is None else weakref.ref(content) for content in outputs]

    def missing(self) -> list[StorageContent]:
        """What has to be made again before this can run."""
        noted = tree_leaves((self.arguments, self.keywords))
        return [one.content for one in noted if isinstance(one, ViewArgument) and one.content.needs_recomputation]

    def run(self, restore: Callable[[StorageContent], torch.UntypedStorage]) -> None:
        """Gives the contents that it makes their memory."""

        def argument(noted: ViewArgument | KeptTensor | ScratchArgument) -> Tensor:
            if isinstance(noted, KeptTensor):
                return noted.unpack()
            if isinstance(noted, ScratchArgument):
                return torch.zeros_like(noted.tensor)
            return noted.view.over(restore(noted.content))

        arguments, keywords = tree_map_only(
            (ViewArgument, KeptTensor, ScratchArgument), argument, (self.arguments, self.keywords)
        )
        if self.is_in_place:
            # In a copy, as others read what it overwrites. (Another operation would have other types or strides.)
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
    """A copy of all of a tensor's storage, seen as by the tensor: with the same strides, of which rounding can depend."""
    return View.of(tensor).over(all_bytes(tensor.untyped_storage()).clone().untyped_storage())


def outputs_of(results: Any) -> list[Any]:
    """What an operation returns, as a list: tensors, or something else in between."""
    return list(results) if isinstance(results, (tuple, list)) else [results]
