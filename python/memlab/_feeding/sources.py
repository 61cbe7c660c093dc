"""The source of an epoch's batches: host memory or a device."""

from __future__ import annotations

import threading
from collections import deque
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from memlab._feeding.filling import FilledBatch, Filling, Stopped
from memlab._feeding.slots import Ring, Slot
from memlab._tools.messages import warn_once

if TYPE_CHECKING:
    import torch

Pair = tuple[Any, Any]

# Batches that wait on the device beside the current one.
_READY_BATCHES = 2


class Source(Protocol):
    """Returns the inputs and outputs of each batch in turn."""

    def take(self, number: int) -> Pair: ...

    def stop(self) -> None: ...

    def join(self) -> None: ...


class HostSource:
    """Batches as arrays, or as tensors if the readers yield tensors."""

    def __init__(self, filling: Filling, tensors: bool) -> None:
        self._filling = filling
        self._tensors = tensors

    def take(self, number: int) -> Pair:
        batch = self._filling.take(number)
        inputs, outputs = self._filling.ring.lend(batch.slot, batch.rows)
        if not (batch.tensors or self._tensors):
            return inputs, outputs
        import torch

        return torch.from_numpy(inputs), torch.from_numpy(outputs)

    def stop(self) -> None:
        self._filling.stop()

    def join(self) -> None:
        self._filling.join()


class DeviceCopies:
    """Copies slots to a CUDA device on a separate stream."""

    def __init__(self, device: torch.device, ring: Ring) -> None:
        import torch

        self._torch = torch
        self.device = device
        self._stream = torch.cuda.Stream(device)
        self._pinned = [slot for slot in ring.slots if self._pin(slot)]

    def start(self, batch: FilledBatch) -> tuple[Pair, torch.cuda.Event]:
        """Begins to copy a batch; its slot may be filled again after the event."""
        torch = self._torch
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            pair = tuple(
                torch.from_numpy(array[: batch.rows]).to(self.device, non_blocking=True)
                for array in (batch.slot.inputs, batch.slot.outputs)
            )
            event = torch.cuda.Event()
            event.record()
        return pair, event  # type: ignore[return-value]

    def hand_over(self, pair: Pair, event: torch.cuda.Event) -> Pair:
        """Makes the caller's stream wait for a copy."""
        stream = self._torch.cuda.current_stream(self.device)
        stream.wait_event(event)
        for tensor in pair:
            tensor.record_stream(stream)  # The allocator reuses the memory only after this stream's work.
        return pair

    def close(self) -> None:
        """Waits for copies, and unpins the slots."""
        self._stream.synchronize()
        for slot in self._pinned:
            self._torch.cuda.cudart().cudaHostUnregister(slot.address)
        self._pinned.clear()

    def _pin(self, slot: Slot) -> bool:
        with self._torch.cuda.device(self.device):
            error = self._torch.cuda.cudart().cudaHostRegister(slot.address, slot.nbytes, 0)
        if int(error) != 0:
            warn_once(f"the feeder's batches cannot be pinned ({error}): copies to the GPU are slower and synchronous")
        return int(error) == 0


class DeviceSource:
    """Batches on a device, copied while the previous one is computed on.

    A thread copies each batch as soon as it is filled. Without workers, `take` does, and the copy runs while the next batch
    is read.
    """

    def __init__(self, filling: Filling, copies: DeviceCopies, background: bool) -> None:
        self._filling = filling
        self._copies = copies
        self._copying: deque[tuple[torch.cuda.Event, Slot]] = deque()
        self._uncopied: FilledBatch | None = None  # A batch for which the device had no memory.
        self._ready: SimpleQueue[tuple[Pair, torch.cuda.Event] | BaseException] = SimpleQueue()
        self._places = threading.Semaphore(_READY_BATCHES)
        self._asked_again = threading.Semaphore(0)
        self._raised = False
        self._stopped = False
        self._thread: threading.Thread | None = None
        if background:
            self._thread = threading.Thread(target=self._copy_all, name="memlab-feeder-copies", daemon=True)
            self._thread.start()

    def take(self, number: int) -> Pair:
        if self._thread is None:
            return self._copies.hand_over(*self._copy(number))
        if self._raised:
            self._raised = False
            self._asked_again.release()
        ready = self._ready.get()
        if isinstance(ready, BaseException):
            self._raised = True
            raise ready
        self._places.release()
        return self._copies.hand_over(*ready)

    def stop(self) -> None:
        self._stopped = True
        self._filling.stop()
        self._places.release()
        self._asked_again.release()
        if self._thread is not None:
            self._thread.join()  # The thread waits only for copies.

    def join(self) -> None:
        while self._copying:
            self._finish_copy()
        if self._uncopied is not None:
            self._filling.ring.free.put(self._uncopied.slot)
        self._filling.join()

    def _copy(self, number: int) -> tuple[Pair, torch.cuda.Event]:
        """Begins to copy a batch, after waiting for a free slot if necessary."""
        if self._thread is None and len(self._copying) == self._filling.ring.count:
            self._finish_copy()
        batch = self._uncopied or self._filling.take(number)
        self._uncopied = batch
        pair, event = self._copies.start(batch)
        self._uncopied = None
        self._copying.append((event, batch.slot))
        return pair, event

    def _finish_copy(self) -> None:
        event, slot = self._copying.popleft()
        event.synchronize()
        self._filling.ring.free.put(slot)

    def _copy_all(self) -> None:
        number = 0
        while number < self._filling.epoch_reads.batches:
            self._places.acquire()
            if self._stopped:
                break
            try:
                self._ready.put(self._copy(number))
                self._finish_copy()
                number += 1
            except Stopped:
                break
            except BaseException as error:
                self._ready.put(error)
                self._asked_again.acquire()
                self._places.release()
