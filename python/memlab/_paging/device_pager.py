"""Pages to one device: its weights, their device memory, and the threads in forwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

from memlab import _native
from memlab._paging.arena import ArenaMemory
from memlab._paging.boundaries import WrappedModule
from memlab._paging.clock import Clock
from memlab._paging.device_pool import DevicePool
from memlab._paging.forward_context import ForwardContext, ThreadState, TracedContext
from memlab._paging.module_patch import ModulePatch
from memlab._paging.paged_tensor import Weight
from memlab._paging.plan_state import TRAINED, PlanState, Stage
from memlab._paging.settings import Settings
from memlab._paging.stages import Stages
from memlab._paging.tensor_memory import view_of
from memlab._paging.tensor_swap import TensorSwap
from memlab._paging.tracing import Tracer
from memlab._paging.training import refuse_training, warn_of_training


class DevicePager:
    """Pages weights to one device. The wrapper of the model's forwards opens a `forward_scope` around each."""

    def __init__(
        self,
        model: nn.Module,
        weights: list[Weight],
        wrapped_modules: list[WrappedModule],
        blocks: set[nn.Module],
        memory: ArenaMemory,
        settings: Settings,
        state: PlanState,
        patch: ModulePatch,
        *,
        unwraps: bool = True,
    ) -> None:
        self.model = model
        self.memory = memory
        self.settings = settings
        self.state = state
        self.patch = patch
        self.swap = TensorSwap(weights)
        device = settings.device
        index = None if device.type == "cpu" else device.index
        self.pipeline = _native.Pipeline(memory.arena, index, settings.bytes_per_second)
        self.pool = DevicePool(weights, memory, self.swap, device, settings.on_change, self.pipeline)
        self.clock = Clock(device)
        self.thread_state = ThreadState()
        self.forwards_lock = threading.Lock()  # Held while `active_forwards` changes.
        self.active_forwards: dict[int, ForwardContext | TracedContext] = {}  # By thread.
        self.stages = Stages(weights, wrapped_modules, blocks, settings, state, self.pool, patch, unwraps)
        for weight in weights:
            for paged in weight.tensors:
                if weight.mapped_storage is not None:
                    paged.unloaded = paged.form_over(weight.mapped_storage)
                    self.swap.put_inside(paged, paged.unloaded)

    def tracer(self) -> Tracer:
        """Returns the tracer that records the operations of a forward."""
        return Tracer(self.stages.weights, self.settings.device, reads_rows=self.memory.arena.pinned)

    @contextmanager
    def forward_scope(self) -> Iterator[None]:
        """Marks the calling thread as in a forward of the model."""
        tracer = None
        context: ForwardContext | TracedContext
        if self.stages.stage is Stage.TRACING:
            tracer = self.tracer()
            context = TracedContext(tracer)
        else:
            if self.thread_state.session is None:
                self.thread_state.session = self.pipeline.session()
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

    def make_trained_resident(self) -> None:
        """Makes weights resident that a forward with gradients trains, so that an optimizer finds them on the device."""
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

    def in_forward(self) -> bool:
        """Returns True if a forward is in progress."""
        # KeyboardInterrupt can skip `_leave`, which leaves an entry of this thread behind.
        return self.thread_state.context is not None or bool(self.active_forwards.keys() - {threading.get_ident()})

    def stop(self, is_forked: bool = False) -> None:
        """Frees the device memory. Modules hold the model's own tensors from now on."""
        self.pool.clear(is_forked)
        self.swap.release()

    def drop_weights(self) -> None:
        """Drops the references to the model's tensors, which stay views of the arena and keep it alive."""
        for weight in self.stages.weights:
            if weight.separate:
                for paged in weight.tensors:
                    own = self.memory.of_tensor(paged)
                    paged.tensor.data = view_of(own, paged.tensor.dtype, 0, paged.tensor.shape, paged.tensor.stride())
            weight.drop_references()
