"""Base class of pagers.

It wraps each module's `forward` to report the position of a thread. The outermost call is a forward.
"""

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
from memlab._paging.clock import Clock
from memlab._paging.device_pager import DevicePager
from memlab._paging.module_patch import ModulePatch, PatchedForward
from memlab._paging.plan_state import PlanQueries, PlanState, Stage


class ModelPager:
    """A model that is paged to one device or to several. Until it is settled, one thread at a time runs its forwards."""

    clock: Clock  # Of whole forwards.

    def __init__(self, model: nn.Module, memory: ArenaMemory, state: PlanState) -> None:
        self.model = model
        self.memory = memory
        self.state = state
        self.patch = ModulePatch(model, "paged", self._originals)
        self.pagers: list[DevicePager] = []  # One for each device with weights.
        self.known = KnownTensors(model)
        self.learning_lock = threading.RLock()  # Held while a forward that memlab learns from runs.
        self.released = False
        self.process = os.getpid()
        sharing = PlanQueries.sharing if memory.share is None else memory.share.members
        self.queries = PlanQueries(lambda: self.clock.last_ns(), self._counters, self._accept_edits, sharing)

    def _originals(self, module: nn.Module) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for pager in self.pagers:
            found |= pager.swap.originals(module)
        return found

    def _counters(self) -> dict[str, int]:
        several = [pager.pipeline.counters() for pager in self.pagers]
        return {name: sum(counters[name] for counters in several) for name in several[0]}

    def _accept_edits(self) -> None:
        for pager in self.pagers:
            pager.pool.edits.accept()

    def _watch(self, wrapped_modules: Iterable[WrappedModule], thread: threading.local) -> None:
        """Patches the modules. Calls within a forward are reported to `thread.context`."""
        for wrapped in wrapped_modules:
            self.patch.wrap(wrapped.module, self._wrapper(wrapped, thread), wrapped.method)
            if isinstance(wrapped.module, nn.RNNBase):
                # Models call it in forwards, where it would move the weights to memory that PyTorch allocates.
                self.patch.make_no_op(wrapped.module, "flatten_parameters")
        self.patch.guard()

    def _wrapper(self, wrapped: WrappedModule, thread: threading.local) -> Callable[[Callable[..., Any]], Any]:
        return lambda original: PatchedForward(wrapped, original, thread, self._outermost_call)

    def _outermost_call(self, wrapped: WrappedModule, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs a call that is not inside another call of this model. This call is the forward."""
        if self.released:  # The program has wrapped this method and still calls it.
            return original(*args, **kwargs)
        self._refuse_call()
        try:
            return self._call(wrapped, original, args, kwargs)
        except RuntimeError as error:
            self.known.explain(error, "paged", self._cure_of_added())
            raise

    def _cure_of_added(self) -> str:
        """Remedy for tensors added to the paged model."""
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

    def release(self) -> None:
        """Removes the patch from the model. The tensors stay views of the arena, which they keep alive."""
        if any(pager.in_forward() for pager in self.pagers):
            raise RuntimeError("a forward of this model is under way: call memlab.unpage(model) when it has ended")
        is_forked = os.getpid() != self.process
        if is_forked and not self.memory.arena.inherited:
            raise self._forked()
        self.released = True
        for pager in self.pagers:
            pager.stop(is_forked)
        self.patch.release()
        for pager in self.pagers:
            pager.drop_weights()
        if not is_forked:
            self.memory.arena.unpin()

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
        """Runs a forward and learns the weights it needs or its duration."""
        raise NotImplementedError

    def _forward(self, wrapped: WrappedModule, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        raise NotImplementedError
