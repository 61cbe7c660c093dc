"""Thread-local state that a forward depends on, copied from one thread to another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from memlab._batches.state import Autocast
from memlab._paging.torch_private import (
    dispatch_modes,
    function_modes,
    push_dispatch_mode,
    push_function_mode,
    saved_tensor_hooks,
)


class ThreadState:
    """Autocast, devices, streams, hooks on saved tensors, and modes of the thread that creates this object.

    (The default dtype and deterministic algorithms belong to the process. Context variables are copied with the thread.)
    """

    def __init__(self) -> None:
        self._autocast = Autocast()
        self._function_modes = function_modes()
        self._dispatch_modes = dispatch_modes()
        self.hooks = saved_tensor_hooks()
        self._device: int | None = None
        self._streams: list[torch.cuda.Stream] = []
        if torch.cuda.is_initialized():
            self._device = torch.cuda.current_device()
            self._streams = [torch.cuda.current_stream(index) for index in range(torch.cuda.device_count())]

    def enter(self) -> None:
        """Applies the state to the calling thread, for the rest of its life."""
        # Backward then runs in the calling thread, which may wait: PyTorch has one thread per GPU for all backwards.
        torch.autograd.set_multithreading_enabled(False)
        for stream in self._streams:
            torch.cuda.set_stream(stream)
        if self._device is not None:
            torch.cuda.set_device(self._device)
        for mode in self._function_modes:
            push_function_mode(mode)
        for mode in self._dispatch_modes:
            push_dispatch_mode(mode)

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Runs a forward with the autocast and the hooks on saved tensors."""
        with ExitStack() as stack:
            if self.hooks is not None:
                stack.enter_context(torch.autograd.graph.saved_tensors_hooks(*self.hooks))
            stack.enter_context(self._autocast.again())
            yield
