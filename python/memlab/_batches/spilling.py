"""Memory of waiting threads: the results of their forwards and backwards are on the host until they go on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from memlab import _native
from memlab._activations.copy_streams import CopyStream
from memlab._activations.offload_mode import OffloadMode
from memlab._activations.offloaded_forward import SMALLEST, OffloadedForward
from memlab._batches.lockstep_history import MicrobatchHistory
from memlab._paging.torch_private import (
    OperationMode,
    StorageWeakRef,
    clear_cublas_workspaces,
    raw_stream,
    storage_of,
    tensor_key,
    tree_leaves,
)


class _SpilledStorage:
    """A storage whose bytes are on the host, or on their way to the host or back."""

    def __init__(self, owner: MicrobatchMemory, storage: torch.UntypedStorage, copy: _native.HostCopy) -> None:
        self.owner = owner
        self.storage = storage
        self.copy = copy
        # Its memory on the device was freed; it has memory again, which is being filled.
        self._has_left = False
        self._is_loading = False

    def leave(self, stream: int) -> None:
        """Frees the memory on the device as soon as the copy is done."""
        if not self._has_left:
            self.copy.wait_saved(stream)
            self.storage.resize_(0)
            self._has_left = True

    def begin_return(self, stream: int) -> None:
        """Begins to copy the bytes back, if the memory was freed."""
        if self._has_left:
            self.storage.resize_(self.copy.nbytes)
            self.copy.load(self.storage.data_ptr(), stream)
            self._has_left, self._is_loading = False, True

    def arrive(self, stream: int) -> None:
        """After `begin_return`: lets work that is queued on `stream` from now on read and write the storage."""
        if self._is_loading:
            self.copy.wait_loaded(stream)
        else:  # The copy to the host may still read the storage.
            self.copy.wait_saved(stream)


class Spilling:
    """The spilled memory of a batch's threads."""

    def __init__(self, device: torch.device, room: int, pending_nbytes: int = 0) -> None:
        """`room`: bytes of waiting threads that may stay on the device. `pending_nbytes`: bytes of one thread that may be on
        their way to the host, and of one on their way back, while another computes."""
        self.device = device
        self.room = room
        self.pending_nbytes = pending_nbytes
        self.copy_stream = CopyStream.of(device)
        # By storage key.
        self.spilled: dict[int, _SpilledStorage] = {}
        #: Storages on their way back to threads that have not resumed, by storage key.
        self.returning: dict[int, _SpilledStorage] = {}
        #: The thread that was suspended last, whose storages may still be on their way.
        self.leaving: MicrobatchMemory | None = None
        #: Bytes of storages on the host now, and their peak.
        self.nbytes = 0
        self.peak_nbytes = 0

    def stream(self) -> int:
        return raw_stream(self.device)

    def put(self, key: int, spilled: _SpilledStorage) -> None:
        """Adds a storage that is on its way to the host."""
        self.spilled[key] = spilled
        self.nbytes += spilled.copy.nbytes
        self.peak_nbytes = max(self.peak_nbytes, self.nbytes)

    def begin_return(self, key: int) -> None:
        """Begins the return of a storage."""
        spilled = self.spilled[key]
        spilled.begin_return(self.stream())
        del self.spilled[key]
        self.nbytes -= spilled.copy.nbytes
        self.returning[key] = spilled

    def arrive(self, key: int) -> _SpilledStorage:
        """Completes the return of a storage."""
        if key in self.spilled:
            self.begin_return(key)
        spilled = self.returning.pop(key)
        spilled.arrive(self.stream())
        return spilled

    def bring_all_back(self) -> None:
        """Returns all storages after a failure, so that tensors that are still referenced have their values. Storages for
        which memory is missing are lost: the original failure must reach the caller."""
        for key in [*self.returning, *self.spilled]:
            with suppress(Exception):
                self.arrive(key)


class MicrobatchMemory(OperationMode):
    """Tracks the storages that the operations of a thread create.

    Tensors that autograd saves in forward are offloaded as by `memlab.offload_activations`, except for those that fit, and
    return in backward. Other live tensors (the input of the layer in which the thread waits, shortcuts around it) leave at
    each meeting and return after it. While one thread computes, the storages of the previous one still leave, and those of
    the next one already return.
    """

    def __init__(self, spilling: Spilling, history: MicrobatchHistory) -> None:
        super().__init__()
        self._spilling = spilling
        self._history = history
        self._made: dict[int, StorageWeakRef] = {}
        # Those that forward keeps on the device until backward.
        self._kept: set[int] = set()
        self._offload_mode: OffloadMode | None = None
        self._forward: OffloadedForward | None = None
        # Bytes on the device while the thread waits.
        self._staying = 0
        # True once its storages have begun to return.
        self._is_expected = False

    @classmethod
    def is_infra_mode(cls) -> bool:
        """True, as for `OffloadMode`."""
        return True

    @contextmanager
    def forward(self, *, offloads: bool) -> Iterator[None]:
        """Runs the thread's forward. Tensors that autograd saves are offloaded unless the program has its own hooks."""
        with ExitStack() as stack:
            stack.enter_context(self)
            if offloads:
                self._offload_mode = stack.enter_context(OffloadMode(self._spilling.device, self._history))
            yield
            if self._offload_mode is not None:
                self._forward, self._offload_mode = self._offload_mode.forward, None
                self._note_kept()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = {} if kwargs is None else kwargs
        read = set(_keys((args, keywords)))
        for key in read & (self._spilling.spilled.keys() | self._spilling.returning.keys()):
            # Another thread's: modules keep tensors, such as tables that the first forward makes. It stays from now on.
            self._spilling.arrive(key).owner._made.pop(key)
        results = func(*args, **keywords)
        for tensor in tree_leaves(results):
            if isinstance(tensor, Tensor) and tensor.device == self._spilling.device:
                made = tensor_key(tensor)
                if made is not None and made not in read and tensor.untyped_storage().nbytes() >= SMALLEST:
                    self._made[made] = StorageWeakRef(tensor.untyped_storage())
                    self._kept.discard(made)
        return results

    def suspend(self, shared: Iterable[Any], *, spills: bool = True) -> None:
        """Suspends the thread: its storages go to the host, except for those that fit and those that others read.

        Threads run in turn, so threads that already wait resume sooner than this one, and stay where they are. Without
        `spills` all of it stays, since reads by others are not observed then.
        """
        spilling, stream = self._spilling, self._spilling.stream()
        if spilling.leaving is not None:
            spilling.leaving.release_copied()
        if self._offload_mode is not None:
            self._note_kept()
        elif self._forward is not None:
            self._forward.pause()
        self._is_expected = False
        stays = set(_keys(shared)) | self._kept
        pending_nbytes = 0
        for key, reference in list(self._made.items()) if spills else ():
            storage = None if key in stays else storage_of(reference)
            if storage is None:
                if key not in stays:
                    del self._made[key]
            elif not storage.resizable():
                continue
            elif storage.nbytes() <= spilling.room:
                self._staying += storage.nbytes()
                spilling.room -= storage.nbytes()
            else:
                copy = spilling.copy_stream.save(storage, stream)
                if copy is not None:
                    spilled = _SpilledStorage(self, storage, copy)
                    spilling.put(key, spilled)
                    pending_nbytes += copy.nbytes
        spilling.leaving = self
        if pending_nbytes > spilling.pending_nbytes:
            self.release_copied()
        if spilling.device.type == "cuda":
            clear_cublas_workspaces()  # Each thread would keep a workspace.

    def release_copied(self) -> None:
        """Frees the device memory of storages that are on their way to the host."""
        for _, spilled in self._own():
            spilled.leave(self._spilling.stream())
        if (forward := self._last_forward()) is not None:
            forward.release_copied()

    def expect(self) -> None:
        """Begins the return of storages for the thread that resumes next."""
        self._is_expected = True
        ahead = 0
        for key, spilled in self._own():
            ahead += spilled.copy.nbytes
            if ahead > self._spilling.pending_nbytes:
                break
            self._spilling.begin_return(key)
        if self._forward is not None:
            self._forward.go_on()

    def resume(self) -> None:
        """Resumes the thread, with all storages back on the device."""
        self._spilling.room += self._staying
        self._staying = 0
        if not self._is_expected:
            self.expect()
        for key, _ in self._own():
            self._spilling.begin_return(key)
        for key in [key for key, spilled in self._spilling.returning.items() if spilled.owner is self]:
            self._spilling.arrive(key)

    def _last_forward(self) -> OffloadedForward | None:
        """The forward of the thread, during and after its run."""
        return self._forward if self._offload_mode is None else self._offload_mode.forward

    def _own(self) -> list[tuple[int, _SpilledStorage]]:
        return [(key, spilled) for key, spilled in self._spilling.spilled.items() if spilled.owner is self]

    def _note_kept(self) -> None:
        """Records the storages that stay on the device until backward, or that the offloaded forward moves."""
        if (forward := self._last_forward()) is not None:
            self._kept |= {key for key in self._made if key not in self._kept and forward.is_to_stay(key)}


def _keys(values: Any) -> Iterator[int]:
    """Keys of the storages of all tensors in a value."""
    for leaf in tree_leaves(values):
        if isinstance(leaf, Tensor) and (key := tensor_key(leaf)) is not None:
            yield key
