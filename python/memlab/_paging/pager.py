"""Wraps a paged model's forwards: traces the first, then loads units for each.

In the first forward, which runs eagerly, each weight is copied for the operation that uses it. `Stages` makes the placements
of the units.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from memlab import _native
from memlab._paging.arena import ArenaMemory
from memlab._paging.boundaries import WrappedModule
from memlab._paging.clock import Clock
from memlab._paging.device_pool import DevicePool
from memlab._paging.device_transfer import to_device, with_replaced
from memlab._paging.forward_context import ForwardContext, RerunContext, ThreadState, TracedContext
from memlab._paging.micro_batches import in_micro_batches, repeated_blocks
from memlab._paging.module_patch import ModulePatch
from memlab._paging.paged_tensor import Weight
from memlab._paging.plan_state import TRAINED, PlanQueries, PlanState, Stage
from memlab._paging.settings import Settings
from memlab._paging.stages import Stages
from memlab._paging.tensor_memory import view_of
from memlab._paging.tensor_swap import TensorSwap
from memlab._paging.torch_private import without_dispatch_modes
from memlab._paging.tracing import Tracer
from memlab._paging.training import refuse_training, warn_of_training


class Pager:
    """A paged model: wraps its forwards, in which the pipeline loads units."""

    def __init__(
        self, model: nn.Module, weights: list[Weight], memory: ArenaMemory, settings: Settings, state: PlanState
    ) -> None:
        self.model = model
        self.memory = memory
        self.settings = settings
        self.state = state
        self.blocks = repeated_blocks(model) if settings.micro_batch else set()
        self.swap = TensorSwap(weights)
        self.patch = ModulePatch(model, "paged", self.swap.originals)
        device = settings.device
        pipeline = _native.Pipeline(memory.arena, None if device.type == "cpu" else device.index, settings.bytes_per_second)
        self.pool = DevicePool(weights, memory, self.swap, device, settings.on_change, pipeline)
        self.clock = Clock(device)
        self.thread_state = ThreadState()
        self.learning_lock = threading.RLock()  # Held while a tracing or measuring forward runs.
        self.forwards_lock = threading.Lock()  # Held while `active_forwards` changes.
        self.active_forwards: dict[int, ForwardContext | TracedContext] = {}  # By thread.
        self.released = False
        self.process = os.getpid()
        self.called_this_stage: set[WrappedModule] = set()  # Modules of outermost calls in this stage.
        wrapped_modules = [WrappedModule(module, index) for index, module in enumerate(model.modules())]
        self.stages = Stages(weights, wrapped_modules, self.blocks, settings, state, self.pool, self.patch)
        for weight in weights:
            for paged in weight.tensors:
                if weight.mapped_storage is not None:
                    paged.unloaded = paged.form_over(weight.mapped_storage)
                    self.swap.put_inside(paged, paged.unloaded)
        for wrapped in wrapped_modules:
            self.patch.wrap(wrapped.module, self._wrapper(wrapped))
            if isinstance(wrapped.module, nn.RNNBase):
                # Models call it in forwards, where it would move the weights to memory that PyTorch allocates.
                self.patch.make_no_op(wrapped.module, "flatten_parameters")
        self.patch.guard()
        sharing = PlanQueries.sharing if memory.share is None else memory.share.members
        self.queries = PlanQueries(self.clock.last_ns, pipeline.counters, self.pool.edits.accept, sharing)

    def _wrapper(self, wrapped: WrappedModule) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
            if wrapped.module in self.blocks:
                original = in_micro_batches(wrapped.module, original, self.settings.micro_batch or 0, self._rerun_context)

            def forward(*args: Any, **kwargs: Any) -> Any:
                context = self.thread_state.context
                if context is None:
                    if self.released:  # The program still calls this wrapper, which it has wrapped in another one.
                        return original(*args, **kwargs)
                    return self._outermost_call(wrapped, original, args, kwargs)
                if wrapped.at_enter or not wrapped.needs <= context.held:
                    context.reach(wrapped.enter_key)
                result = original(*args, **kwargs)
                if wrapped.at_exit:
                    context.reach(wrapped.exit_key)
                return result

            return forward

        return wrapper

    def _rerun_context(self) -> AbstractContextManager[None] | None:
        """In the traced forward: a context in which nothing is traced. Needs weights that are mapped, as none is loaded."""
        tensors = self.pool.edits.tensors
        if self.stages.stage is not Stage.TRACING or any(paged.unloaded is None for paged in tensors) or self.model.training:
            return None
        return self._rerun_scope()

    @contextmanager
    def _rerun_scope(self) -> Iterator[None]:
        context, self.thread_state.context = self.thread_state.context, RerunContext()
        try:
            with without_dispatch_modes():
                yield
        finally:
            self.thread_state.context = context

    def _outermost_call(self, wrapped: WrappedModule, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs a call that is in no other call of this model: the forward is this call."""
        if os.getpid() != self.process:
            raise self._forked()
        if torch.jit.is_tracing():
            raise RuntimeError(
                "torch.jit.trace records the addresses of weights, which change in a paged model: call "
                "memlab.unpage(model) before tracing it"
            )
        if self.stages.stage is not Stage.SETTLED:
            with self.learning_lock:
                if self.stages.stage is not Stage.SETTLED:
                    return self._learning_forward(wrapped, original, args, kwargs)
        return self._forward(wrapped, original, args, kwargs)

    def _learning_forward(self, wrapped: WrappedModule, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs a tracing or measuring forward; one thread at a time."""
        stages = self.stages
        if self.settings.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "the first two forwards of a paged model are traced and timed: run it three times before capturing it in "
                f"a CUDA graph (stage: {stages.stage.value})"
            )
        if wrapped in self.called_this_stage:
            # The second outermost call of this module: the calls before it were a whole forward.
            self._advance()
        result = self._forward(wrapped, original, args, kwargs)
        self.called_this_stage.add(wrapped)
        if stages.stage is Stage.TRACING:
            complete = stages.all_weights_used()
        else:
            complete = stages.stage is Stage.MEASURING and stages.note_times()
        if complete:
            self._advance()
        return result

    def _advance(self) -> None:
        self.stages.advance()
        self.called_this_stage.clear()

    def _forward(self, wrapped: WrappedModule, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._make_trained_resident()
        device = self.settings.device
        if device.type != "cpu":
            args, kwargs = to_device(args, device), to_device(kwargs, device)
        # In this order: the saved-tensor hooks depend on the placement, which the begin of a forward may change.
        with self._forward_scope(), nullcontext() if torch.is_inference_mode_enabled() else self.stages.saved_tensors():
            context = self.thread_state.context
            if context is not None and (wrapped.at_enter or not wrapped.needs <= context.held):
                context.reach(wrapped.enter_key)
            # A weight that the model returns is returned in its mapped form, which no other weight overwrites.
            return with_replaced(original(*args, **kwargs), self.pool.stable_results)

    @contextmanager
    def _forward_scope(self) -> Iterator[None]:
        tracer = None
        context: ForwardContext | TracedContext
        if self.stages.stage is Stage.TRACING:
            tracer = Tracer(self.stages.weights, self.settings.device, reads_rows=self.memory.arena.pinned)
            context = TracedContext(tracer)
        else:
            if self.thread_state.session is None:
                self.thread_state.session = self.pool.pipeline.session()
            context = ForwardContext(self.pool, self.stages.viewed, self.thread_state.session, self.active_forwards)
        try:
            self._enter(context)
            self.thread_state.context = context
            with tracer or nullcontext(), self.clock:
                yield
            context.ended = True
            if tracer is not None:
                self.stages.trace.extend(tracer.finish())
        finally:
            self.thread_state.context = None
            try:
                context.leave()
            finally:
                self._leave(context)

    def _enter(self, context: ForwardContext | TracedContext) -> None:
        thread = threading.get_ident()
        with self.forwards_lock:
            # KeyboardInterrupt can skip `_leave`.
            self.active_forwards.pop(thread, None)
            if not self.active_forwards:
                self.swap.leave()
                self.stages.make_viewed_resident()
                self.pool.edits.before_forward()
            self.active_forwards[thread] = context
            self.swap.enter()

    def _leave(self, context: ForwardContext | TracedContext) -> None:
        with self.forwards_lock:
            for thread in [thread for thread, other in self.active_forwards.items() if other is context]:
                del self.active_forwards[thread]
            self.stages.viewed.end_forward(context.view_sessions, context.ended)
            if not self.active_forwards:
                self.swap.leave()
                self.pool.edits.after_forward()

    def _make_trained_resident(self) -> None:
        """Makes the weights resident that a forward with gradients trains, so that an optimizer finds them on the device."""
        if not torch.is_grad_enabled() or not any(paged.tensor.requires_grad for paged in self.pool.edits.tensors):
            return
        with self.forwards_lock:
            trained = [weight for weight in self.stages.weights if weight.is_trained]
            if not trained:
                return  # Another thread has moved them.
            others = bool(self.active_forwards.keys() - {threading.get_ident()})
            refuse_training(self.model, trained, self.state, self.settings, others)
            self.swap.leave()  # KeyboardInterrupt can skip `_leave`.
            self.stages.make_trained_resident(trained)
        if self.state.resident_tensors[TRAINED] * 2 > self.state.host_bytes:
            warn_of_training(self.state)

    def release(self) -> None:
        """Takes everything off the model again; its tensors stay views of the arena, which they keep alive."""
        # KeyboardInterrupt can skip `_leave`: an entry of this thread may be left over.
        if self.thread_state.context is not None or self.active_forwards.keys() - {threading.get_ident()}:
            raise RuntimeError("a forward of this model is under way: call memlab.unpage(model) when it has ended")
        is_forked = os.getpid() != self.process
        if is_forked and not self.memory.arena.inherited:
            raise self._forked()
        self.released = True
        self.pool.clear(is_forked)
        self.swap.release()
        self.patch.release()
        for weight in self.stages.weights:
            if weight.separate:
                for paged in weight.tensors:
                    own = self.memory.of_tensor(paged)
                    paged.tensor.data = view_of(own, paged.tensor.dtype, 0, paged.tensor.shape, paged.tensor.stride())
            weight.drop_references()
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
