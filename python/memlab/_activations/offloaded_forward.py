"""One forward and its backward: contents that autograd saves are copied to the host or recomputed, within a budget."""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from memlab._activations.copy_streams import CopyStream
from memlab._activations.forward_histories import ForwardHistories, ForwardHistory
from memlab._activations.operations import (
    is_repeatable,
    numerics,
    scratch_arguments,
    tensors_in,
    traits_of,
)
from memlab._activations.storage_contents import (
    KeptTensor,
    PendingCopy,
    Recomputation,
    ScratchArgument,
    StorageContent,
    ViewArgument,
    outputs_of,
)
from memlab._activations.views import View
from memlab._paging.tensor_memory import all_bytes
from memlab._paging.torch_private import (
    base_of,
    has_no_memory,
    raw_stream,
    storage_key,
    tensor_key,
    use_count,
    version_of,
    without_graph,
)

# Smaller contents stay on the device: requesting a copy would take longer than the copy.
SMALLEST = 1 << 20


class SavedTensor:
    """The value that autograd keeps in place of a tensor."""

    __slots__ = ("content", "forward", "view")

    def __init__(self, forward: OffloadedForward, content: StorageContent, view: View) -> None:
        self.forward = forward
        self.content = content
        self.view = view

    def unpack(self) -> Tensor:
        return self.view.over(self.forward.restore(self.content))


class OffloadedForward:
    """The state of one forward. Autograd's graph keeps it until backward is done."""

    def __init__(self, device: torch.device, histories: ForwardHistories, signature: Any, kept_nbytes: int = 0) -> None:
        """`kept_nbytes`: bytes that autograd has saved before, which stay."""
        self.device = device
        self._history: ForwardHistory = histories.beginning_with(signature)
        self.schedule, self.profile = self._history.begin()
        self.copy_stream = CopyStream.of(device)
        self.stream = raw_stream(device)
        # Settings that affect the rounding of products; assumed to be the same in backward.
        self._numerics = numerics()
        self.operations = 0
        self._unknown = 0
        # By storage key; emptied when the forward ends.
        self._contents: dict[int, StorageContent] = {}
        # Contents that the current operation has overwritten, by storage key.
        self._overwritten: dict[int, StorageContent] = {}
        # Arguments of repeatable operations that are kept as they are, by storage key.
        self._given: dict[int, list[weakref.ref[KeptTensor]]] = {}
        self._made: list[weakref.ref[StorageContent]] = []
        self._by_key: dict[Any, weakref.ref[StorageContent]] = {}
        # Kept contents that may leave for others, in the order of their creation.
        self._residents: deque[weakref.ref[StorageContent]] = deque()
        self._pending_copies: deque[PendingCopy] = deque()
        self._pending_nbytes = 0
        self._offloaded = 0
        self._kept = kept_nbytes
        # Bytes loaded, but not read yet.
        self._ahead = 0
        self._position = 0
        self._pauses = 0
        self._has_saved = False
        # The contents that return from the host, in this order.
        self._order = self._history.order

    # Forward: tensors that autograd saves. --------------------------------------------------------------------------------

    def pack(self, tensor: Tensor) -> KeptTensor | SavedTensor:
        """The value that autograd keeps for a tensor."""
        # Without a graph: autograd passes a node's outputs with the node, which would then keep itself alive.
        if type(tensor) is not Tensor or not self._is_movable(tensor):
            return KeptTensor(without_graph(tensor))
        content = self._content_of(tensor)
        if content is None:
            return KeptTensor(without_graph(tensor))
        kept = None
        if not content.is_saved:
            content.is_saved = self._has_saved = True
            if self.profile is not None:
                self.profile.saved(content)
            if not content.is_restorable:
                self._store(content, tensor)
                kept = content.kept
        if content.kept is not None and not content.is_tracked:
            return kept or KeptTensor(without_graph(tensor))
        content.used()
        return SavedTensor(self, content, View.of(tensor))

    def _is_movable(self, tensor: Tensor) -> bool:
        return (
            tensor.layout is torch.strided
            and tensor.untyped_storage().nbytes() >= SMALLEST
            and tensor.device == self.device
            and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or has_no_memory(tensor))
            and raw_stream(self.device) == self.stream
            # The default stream cannot be captured.
            and (self.stream == 0 or not torch.cuda.is_current_stream_capturing())
        )

    def _content_of(self, tensor: Tensor) -> StorageContent | None:
        """The content of a tensor's storage; None if it stays in memory anyway, as parameters and inputs do."""
        storage = tensor.untyped_storage()
        content = self._contents.get(storage_key(storage))
        version = version_of(tensor)
        if content is not None and content.is_of(version):
            return content if content.stream == self.stream else None
        # Compiled code allocates without dispatching operations; the program holds parameters, inputs and buffers itself.
        base = base_of(tensor)
        if isinstance(base, nn.Parameter) or (tensor.is_leaf and tensor.requires_grad):
            return None
        if 2 * tensor.nbytes < storage.nbytes():
            return None
        key = ("saved", self._unknown)
        self._unknown += 1
        if key in self.schedule.held:
            return None
        return self._note(key, storage, version)

    def _note(self, key: Any, storage: torch.UntypedStorage, version: int, *, is_written: bool = False) -> StorageContent:
        content = StorageContent(key, len(self._made), storage, version, is_written=is_written)
        # The allocator could reuse memory of another stream before this stream has read it.
        content.stream = raw_stream(self.device)
        self._contents[storage_key(storage)] = content
        reference = weakref.ref(content)
        self._made.append(reference)
        self._by_key[key] = reference
        if self.profile is not None:
            self.profile.made(content)
        return content

    def _store(self, content: StorageContent, tensor: Tensor) -> None:
        """Copies a content to the host, unless backward needs it so soon that it may stay."""
        fits = self._kept + content.nbytes <= self.schedule.keep_nbytes
        is_held = content.key in self.schedule.held
        if is_held:
            content.kept = KeptTensor(without_graph(tensor))
        elif self.schedule.evicts:
            self._keep(content, tensor)
            self._residents.append(weakref.ref(content))
            self._evict()
        elif (fits and self._offloaded >= self.schedule.offload_nbytes) or not self._offload(content, tensor):
            self._keep(content, tensor)
            self.release_copied(self.schedule.pending_limit(self._kept))

    def _keep(self, content: StorageContent, tensor: Tensor) -> None:
        content.kept = KeptTensor(without_graph(tensor))
        content.is_tracked = self.schedule.evicts or self.schedule.shares_room
        self._kept += content.nbytes

    def _offload(self, content: StorageContent, tensor: Tensor) -> bool:
        """Begins to copy a content to the host. Returns False if the host has no memory for it."""
        storage = tensor.untyped_storage()
        copy = self.copy_stream.save(storage, self.stream)
        if copy is None:
            return False
        content.copy = copy
        content.pending_copy = PendingCopy(copy, storage)
        self._offloaded += content.nbytes
        self._pending_copies.append(content.pending_copy)
        self._pending_nbytes += content.nbytes
        self.release_copied(self.schedule.pending_limit(self._kept))
        return True

    def _evict(self) -> None:
        """Copies the oldest kept contents to the host, until the rest fits."""
        while self._residents and self._kept > self.schedule.keep_nbytes:
            content = self._residents.popleft()()
            kept = None if content is None else content.kept
            # A content that was overwritten raises in backward, as in autograd.
            if content is None or kept is None or not kept.is_unchanged:
                continue
            if not self._offload(content, kept.tensor):
                self._residents.clear()
                return
            content.kept = None
            self._kept -= content.nbytes

    def release_copied(self, limit: int = 0) -> None:
        """Frees the storages copied longest ago, until at most `limit` bytes are on their way."""
        while self._pending_nbytes > limit and self._pending_copies:
            self._pending_nbytes -= self._pending_copies.popleft().release_copied(self.stream)

    # Forward: the operations. ---------------------------------------------------------------------------------------------

    def passes(self, operation: Any) -> bool:
        """Counts an operation that writes to no argument, and makes nothing that the schedule names. False for others."""
        tracked = self.schedule.tracked
        traits = traits_of(operation)
        if traits.makes_memory and (tracked is None or self.operations in tracked):
            return False
        if self.profile is not None or traits.written or traits.writes_silently or not torch.is_grad_enabled():
            return False
        self.operations += 1
        if self._overwritten:
            self._overwritten.clear()
        return True

    def before(self, operation: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        """Called before an operation runs: the contents that it overwrites become invalid."""
        if self._overwritten:
            self._overwritten.clear()
        traits = traits_of(operation)
        is_written = traits.writes_silently
        if is_written or not torch.is_grad_enabled():
            # In custom functions, kernels that PyTorch does not see may write to their arguments.
            for tensor in tensors_in(arguments, keywords):
                self._mistrust(tensor, is_written=is_written)
        for position, name in traits.written:
            written = arguments[position] if position < len(arguments) else keywords.get(name)
            for tensor in written if isinstance(written, (list, tuple)) else (written,):
                if isinstance(tensor, Tensor):
                    self._forget(tensor)

    def _mistrust(self, tensor: Tensor, *, is_written: bool) -> None:
        """Marks a tensor that something may have written to, or is about to: from now on its saved contents are copied."""
        key = tensor_key(tensor)
        if is_written:
            self._forget(tensor)
        elif key is not None and (content := self._contents.get(key)) is not None and content.recomputation is not None:
            del self._contents[key]

    def _forget(self, tensor: Tensor) -> None:
        key = tensor_key(tensor)
        if key is None:
            return
        for reference in self._given.pop(key, ()):
            given = reference()
            if given is not None:
                given.preserve()
        content = self._contents.pop(key, None)
        if content is None:
            return
        self._overwritten[key] = content
        if content.kept is not None and content.uses and not content.is_saved:
            # Recomputation from it needs its previous values.
            content.kept = KeptTensor(all_bytes(tensor.untyped_storage()).clone())
        if content.pending_copy is not None:
            self._pending_nbytes -= content.pending_copy.release_copied(self.stream)

    def inputs(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[list[StorageContent], list[Tensor], bool]:
        """The inputs of an operation: contents, parameters, and whether all others stay in memory anyway."""
        contents: list[StorageContent] = []
        parameters: list[Tensor] = []
        is_known = True
        for tensor in tensors_in(arguments, keywords):
            content = self._known(tensor)
            if content is not None:
                contents.append(content)
            elif tensor.is_leaf or isinstance(base_of(tensor), nn.Parameter):
                if tensor.requires_grad:
                    parameters.append(tensor)
            else:
                is_known = is_known and tensor.layout is torch.strided and tensor.nbytes < SMALLEST
        return contents, parameters, is_known

    def _known(self, tensor: Tensor) -> StorageContent | None:
        if type(tensor) is not Tensor or tensor.device != self.device or tensor.layout is not torch.strided:
            return None
        if tensor.is_conj() or tensor.is_neg() or has_no_memory(tensor):
            return None
        key = storage_key(tensor.untyped_storage())
        content = self._overwritten.get(key) or self._contents.get(key)
        # Another version was written by an operation that this mode does not see.
        return content if content is not None and content.is_of(version_of(tensor)) else None

    def after(
        self, operation: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], results: Any
    ) -> list[StorageContent | None]:
        """Called after an operation. Returns the contents that it made; None for outputs that are views, or small."""
        index = self.operations
        self.operations += 1
        contents: list[StorageContent | None] = []
        if not traits_of(operation).makes_memory:
            return contents
        if type(results) is Tensor and results.layout is torch.strided and results.nbytes < SMALLEST:
            return contents
        for position, tensor in enumerate(outputs_of(results)):
            content = None
            is_plain = type(tensor) is Tensor and tensor.device == self.device and tensor.layout is torch.strided
            if is_plain and not has_no_memory(tensor):
                storage = tensor.untyped_storage()
                if storage.nbytes() >= SMALLEST and storage_key(storage) not in self._contents:
                    is_written = storage_key(storage) in self._overwritten
                    content = self._note((index, position), storage, version_of(tensor), is_written=is_written)
            contents.append(content)
        if index in self.schedule.recomputed and any(contents):
            self._plan_recomputation(operation, arguments, keywords, contents)
        return contents

    def overwritten(self) -> Iterable[StorageContent]:
        """The contents that the last operation has overwritten."""
        return self._overwritten.values()

    def can_recompute(self, operation: Any, arguments: tuple[Any, ...]) -> bool:
        """True if an operation that has run can be repeated. The contents that it has overwritten must be recomputable, too.

        False where autograd is off: in custom functions and in compiled code, kernels that PyTorch does not see may write to
        its results.
        """
        if not (torch.is_grad_enabled() and is_repeatable(operation, arguments)) or numerics() != self._numerics:
            return False
        # Tensors independent of any parameter may come from kernels that PyTorch does not see, or from the host.
        is_dependent = False
        for tensor in tensors_in(*arguments):
            if tensor.is_inference() or (tensor.device != self.device and tensor.dim() > 0):
                return False
            is_dependent = is_dependent or tensor.requires_grad
        if not is_dependent or raw_stream(self.device) != self.stream:
            return False
        target = arguments[0] if self._overwritten else None
        return target is None or (
            isinstance(target, Tensor)
            and target.nbytes == target.untyped_storage().nbytes()
            and self._known(target) is not None
        )

    def _plan_recomputation(
        self, operation: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], contents: list[StorageContent | None]
    ) -> None:
        """Plans to repeat an operation in backward."""
        if not self.can_recompute(operation, arguments) or any(
            one.recomputation is None for one in self._overwritten.values()
        ):
            return
        if scratch := scratch_arguments(operation, arguments):
            arguments = tuple(
                ScratchArgument(argument) if position in scratch and isinstance(argument, Tensor) else argument
                for position, argument in enumerate(arguments)
            )
        recomputation = Recomputation(
            operation, arguments, keywords, self._argument, contents, is_in_place=bool(self._overwritten)
        )
        for content in contents:
            if content is not None:
                content.recomputation = recomputation

    def _argument(self, tensor: Tensor) -> ViewArgument | KeptTensor:
        """The form in which a repeated operation receives an argument."""
        content = self._known(tensor)
        if content is None:
            kept = KeptTensor(tensor)
            key = tensor_key(tensor)
            if key is not None:
                self._given.setdefault(key, []).append(weakref.ref(kept))
            return kept
        if not content.is_restorable:
            self._store(content, tensor)
        if content.kept is not None and content.is_saved:
            return KeptTensor(tensor)
        content.used()
        return ViewArgument(content, View.of(tensor))

    def ended(self) -> bool:
        """Ends the forward. Later saved tensors do not belong to this object. Returns True if all of them stay."""
        for reference in self._made:
            content = reference()
            pending_copy = None if content is None else content.pending_copy
            if (
                pending_copy is not None
                and pending_copy.storage is not None
                and use_count(storage_key(pending_copy.storage)) > 1
            ):
                # The storage has other references, which may write to it.
                self._pending_nbytes -= pending_copy.release_copied(self.stream)
        if self.profile is not None:
            self.profile.ended()
        self._residents.clear()
        self._contents.clear()
        self._overwritten.clear()
        self._given.clear()
        if self.schedule.shares_room:
            self.release_copied(self.schedule.pending_limit(self._kept + self.schedule.working_nbytes))
        offered = self._offloaded + self._kept
        is_known = self._history.ended(self.operations, has_saved=self._has_saved, offered_nbytes=offered)
        self._prefetch()
        return is_known and self.schedule.keeps_all and not self._offloaded

    # Backward. ------------------------------------------------------------------------------------------------------------

    def restore(self, content: StorageContent) -> torch.UntypedStorage:
        """The memory of a content, for one of its readers. Work queued on this thread's stream may read it."""
        stream = raw_stream(self.device)
        if self.profile is not None:
            self.profile.read(content)
        if content.kept is not None:
            storage = content.kept.unpack().untyped_storage()
            self._read_kept(content)
            return storage
        storage = content.restored
        if storage is None:
            pending_copy = content.pending_copy
            if pending_copy is not None and pending_copy.storage is not None:
                # Its memory was not freed yet.
                storage = pending_copy.storage
                self._pending_nbytes -= pending_copy.release_copied(stream)
                self._order.append(content.key)
            elif content.copy is not None:
                storage = self._load(content, stream)
            elif content.recomputation is not None:
                self._recompute(content)
                storage = content.restored
            assert storage is not None, "a content has one of three ways back"
            content.restored = storage
        if content.is_loading and content.copy is not None:
            content.copy.wait_loaded(stream)
            content.is_loading = False
            self._ahead -= content.nbytes
            self._arrived(content)
        if stream != content.stream:
            all_bytes(storage).record_stream(torch.cuda.current_stream(self.device))
        content.served()
        return storage

    def _read_kept(self, content: StorageContent) -> None:
        """Records that a reader has a kept content. The last one frees it, which makes room for others."""
        content.left -= 1
        if content.left == 0 and content.is_tracked:
            self._kept -= content.nbytes
            self._prefetch()

    def _recompute(self, content: StorageContent) -> None:
        """Recomputes a content, without recursion: chains can be longer than Python's stack."""
        open_contents = [content]
        while open_contents:
            last = open_contents[-1]
            missing = last.recomputation.missing() if last.recomputation is not None and last.needs_recomputation else []
            if missing:
                open_contents.extend(missing)
                continue
            open_contents.pop()
            if last.recomputation is not None and last.needs_recomputation:
                last.recomputation.run(self.restore)
                last.stream = raw_stream(self.device)

    def _load(self, content: StorageContent, stream: int) -> torch.UntypedStorage:
        """Begins to copy a content back."""
        assert content.copy is not None
        storage = torch.UntypedStorage(content.nbytes, device=self.device)
        content.copy.load(storage.data_ptr(), stream)
        content.stream = stream
        # Set before `restored`: another thread that sees the memory has to wait for the copy.
        content.is_loading = True
        content.restored = storage
        self._ahead += content.nbytes
        return storage

    def _arrived(self, content: StorageContent) -> None:
        """Records the order in which contents are read, and loads the next ones."""
        self._order.append(content.key)
        if self.profile is not None:
            self.profile.loaded(content)
        self._position = max(self._position, self.schedule.position.get(content.key, -1) + 1)
        self._prefetch()

    def pause(self) -> None:
        """Marks a pause of backward: contents that are read after it are not prefetched before `go_on`."""
        self._order.append(None)

    def go_on(self) -> None:
        """Ends a pause of backward: begins to load the contents that it will read."""
        pauses = self.schedule.pauses
        if self._pauses < len(pauses):
            self._position = pauses[self._pauses] + 1
        self._pauses += 1
        self._prefetch()

    def is_to_stay(self, key: int) -> bool:
        """True if forward keeps the storage with this key, or its copy to the host has begun."""
        content = self._contents.get(key)
        if content is None or content.kept is not None:
            return content is not None
        pending_copy = content.pending_copy
        return pending_copy is not None and pending_copy.storage is not None and use_count(key) == 1

    def _prefetch(self) -> None:
        order = self.schedule.order
        limit = self.schedule.ahead_limit(self._kept)
        while self._position < len(order) and self._ahead + self._pending_nbytes < limit:
            if order[self._position] is None:
                return
            reference = self._by_key.get(order[self._position])
            content = None if reference is None else reference()
            self._position += 1
            if content is None or content.copy is None or content.restored is not None:
                continue
            if content.pending_copy is None or content.pending_copy.storage is None:
                self._load(content, raw_stream(self.device))

    def __del__(self, suppress: type[contextlib.suppress] = contextlib.suppress) -> None:
        # Kept as a default argument, since the interpreter clears the names of modules at its end.
        # Without a backward, storages may still be on their way to the host.
        with suppress(Exception):  # The interpreter, or the device, may be going away.
            self.release_copied(-1)
