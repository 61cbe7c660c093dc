"""What stands in the place of each module's `forward`: reports where a thread is, and makes the outermost call a forward."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from memlab._paging.added_tensors import KnownTensors
from memlab._paging.arena import ArenaMemory
from memlab._paging.boundaries import WrappedModule
from memlab._paging.module_patch import ModulePatch, PatchedForward
from memlab._paging.plan_state import PlanState, Stage


class WatchedForwards:
    """Forwards of a model that is paged to one device or to several. Until it is settled, one thread at a time runs them."""

    def __init__(self, memory: ArenaMemory, state: PlanState, patch: ModulePatch) -> None:
        self.memory = memory
        self.state = state
        self.patch = patch
        self.known = KnownTensors(patch.model)
        self.learning_lock = threading.RLock()  # Held while a forward that is learned from runs.
        self.released = False
        self.process = os.getpid()

    def _watch(self, wrapped_modules: Iterable[WrappedModule], thread: threading.local) -> None:
        """Puts the patch on modules. `thread.context` is what calls within a forward are reported to."""
        for wrapped in wrapped_modules:
            self.patch.wrap(wrapped.module, self._wrapper(wrapped, thread), wrapped.method)
            if isinstance(wrapped.module, nn.RNNBase):
                # Models call it in forwards, where it would move the weights to memory that PyTorch allocates.
                self.patch.make_no_op(wrapped.module, "flatten_parameters")
        self.patch.guard()

    def _wrapper(self, wrapped: WrappedModule, thread: threading.local) -> Callable[[Callable[..., Any]], Any]:
        return lambda original: PatchedForward(wrapped, original, thread, self._outermost_call)

    def _outermost_call(self, wrapped: WrappedModule, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs a call that is in no other call of this model: the forward is this call."""
        if self.released:  # The program still calls this, which it has wrapped in something of its own.
            return original(*args, **kwargs)
        self._refuse_call()
        try:
            return self._call(wrapped, original, args, kwargs)
        except RuntimeError as error:
            self.known.explain(error, "paged", self._cure_of_added())
            raise

    def _cure_of_added(self) -> str:
        """What to do about tensors that were added to the paged model."""
        return "call memlab.unpage(model) before adding to it, and page it again"

    def _call(self, wrapped: WrappedModule, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.state.stage is not Stage.SETTLED:
            with self.learning_lock:
                if self.state.stage is not Stage.SETTLED:
                    return self._learning_forward(wrapped, original, args, kwargs)
        return self._forward(wrapped, original, args, kwargs)

    def _refuse_call(self) -> None:
        """Raises RuntimeError if the model cannot be called here."""
        if os.getpid() != self.process:
            raise self._forked()
        if torch.jit.is_tracing():
            raise RuntimeError(
                "torch.jit.trace records the addresses of weights, which change in a paged model: call "
                "memlab.unpage(model) before tracing it"
            )

    def _refuse_release(self) -> bool:
        """Whether a forked child of the process that paged the model asks. Raises RuntimeError if it lacks the weights."""
        is_forked = os.getpid() != self.process
        if is_forked and not self.memory.arena.inherited:
            raise self._forked()
        return is_forked

    def _forked(self) -> RuntimeError:
        forked = "this process was forked from the one that paged the model, and has "
        if not self.memory.arena.inherited:
            return RuntimeError(
                f"{forked}no copy of its weights, whose memory is pinned: load and page the model in this process, or start "
                'it with the method "spawn"'
            )
        return RuntimeError(
            f"{forked}none of the threads that copy its weights: call memlab.unpage(model) in this process, and "
            "memlab.page(model) to page it here"
        )

    def _learning_forward(self, wrapped: WrappedModule, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs a forward and learns from it what it needs or how long it takes."""
        raise NotImplementedError

    def _forward(self, wrapped: WrappedModule, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        raise NotImplementedError
