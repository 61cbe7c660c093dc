"""Memory of strands that wait: what their forwards and backwards have made is on the host until they go on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from memlab import _native
from memlab._activations.block import Block
from memlab._activations.forward import SMALLEST
from memlab._activations.histories import Histories
from memlab._activations.lanes import DeviceLane
from memlab._paging.torch_private import (
    StorageWeakRef,
    TorchDispatchMode,
    clear_cublas_workspaces,
    raw_stream,
    storage_of,
    tensor_key,
    tree_leaves,
)

# On their way to the host while a strand runs. They all arrive before it waits.
_FLYING = 256 << 20


class _Away:
    """A storage without memory, whose bytes are on the host."""

    def __init__(self, owner: StrandMemory, storage: torch.UntypedStorage, copy: _native.HostCopy) -> None:
        self.owner = owner
        self.storage = storage
        self.copy = copy

    def leave(self, stream: int) -> None:
        self.copy.wait_saved(stream)
        self.storage.resize_(0)

    def come_back(self, stream: int) -> None:
        self.storage.resize_(self.copy.nbytes)
        self.copy.load(self.storage.data_ptr(), stream)
        self.copy.wait_loaded(stream)


class Spilling:
    """What the strands of a batch have on the host."""

    def __init__(self, device: torch.device, room: int) -> None:
        """`room`: bytes of strands that wait which may stay on the device."""
        self.device = device
        self.room = room
        self.lane = DeviceLane.of(device)
        # By the number of their storage.
        self.away: dict[int, _Away] = {}

    def stream(self) -> int:
        return raw_stream(self.device)

    def bring_all_back(self) -> None:
        """After a failure: whoever still has tensors of a strand finds their values in them."""
        for away in self.away.values():
            away.come_back(self.stream())
        self.away.clear()


class StrandMemory(TorchDispatchMode):
    """Sees which storages the operations of a strand make.

    What autograd saves in forward is offloaded as `memlab.offload_activations` does, and comes back in backward; what is
    alive beside it (the input of the layer that the strand waits in, shortcuts around it) goes at each meeting and comes
    back after it.
    """

    def __init__(self, spilling: Spilling) -> None:
        super().__init__()
        self._spilling = spilling
        self._made: dict[int, StorageWeakRef] = {}
        self._block: Block | None = None
        # What stays on the device while the strand waits.
        self._staying = 0

    @classmethod
    def is_infra_mode(cls) -> bool:
        """As `Block`."""
        return True

    @contextmanager
    def forward(self, *, offloads: bool) -> Iterator[None]:
        """Runs the strand's forward; what autograd saves is offloaded unless the program has hooks of its own."""
        with ExitStack() as stack:
            stack.enter_context(self)
            if offloads:
                # Other histories than anybody's: all is copied, as nothing may stay and wait.
                device = self._spilling.device
                self._block = stack.enter_context(Block(device, Histories(device, 2 * _FLYING, recompute=False)))
            yield
            self._land()
            self._block = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = {} if kwargs is None else kwargs
        read = set(_keys((args, keywords)))
        for key in read & self._spilling.away.keys():
            # Of another strand: modules keep tensors, such as tables that the first forward makes. It stays from now on.
            away = self._spilling.away.pop(key)
            away.come_back(self._spilling.stream())
            away.owner._made.pop(key)
        results = func(*args, **keywords)
        for tensor in tree_leaves(results):
            if isinstance(tensor, Tensor) and tensor.device == self._spilling.device:
                made = tensor_key(tensor)
                if made is not None and made not in read and tensor.untyped_storage().nbytes() >= SMALLEST:
                    self._made[made] = StorageWeakRef(tensor.untyped_storage())
        return results

    def suspend(self, shared: Iterable[Any]) -> None:
        """The strand waits: what it has made goes to the host, but for what there is room for, and tensors that others read.

        Strands go on in turn, so who waits already is needed sooner than this one, and stays where it is."""
        spilling, stream = self._spilling, self._spilling.stream()
        self._land()
        stays = set(_keys(shared))
        leaving = {}
        for key, reference in list(self._made.items()):
            storage = storage_of(reference)
            if storage is None:
                del self._made[key]
            elif key in stays or not storage.resizable():
                continue
            elif storage.nbytes() <= spilling.room:
                self._staying += storage.nbytes()
                spilling.room -= storage.nbytes()
            else:
                copy = spilling.lane.save(storage, stream)
                if copy is not None:
                    leaving[key] = _Away(self, storage, copy)
        for away in leaving.values():
            away.leave(stream)
        spilling.away.update(leaving)
        if spilling.device.type == "cuda":
            clear_cublas_workspaces()  # Each thread would keep one.

    def resume(self) -> None:
        """The strand goes on: all is where it was."""
        self._spilling.room += self._staying
        self._staying = 0
        for key in [key for key, away in self._spilling.away.items() if away.owner is self]:
            self._spilling.away.pop(key).come_back(self._spilling.stream())

    def _land(self) -> None:
        if self._block is not None:
            self._block.land()


def _keys(values: Any) -> Iterator[int]:
    """The numbers of the storages of all tensors in it."""
    for leaf in tree_leaves(values):
        if isinstance(leaf, Tensor) and (key := tensor_key(leaf)) is not None:
            yield key
