"""Wraps a paged model's forwards: traces the first, then loads units for the others.

In the first forward, which runs eagerly, each weight is copied for the operation that uses it. `Stages` creates the
placements of the units.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from memlab._paging.added_tensors import by_storage
from memlab._paging.arena import ArenaMemory
from memlab._paging.boundaries import WrappedModule
from memlab._paging.device_pager import DevicePager
from memlab._paging.device_transfer import device_of_first, to_device, with_replaced
from memlab._paging.entry_methods import entry_methods
from memlab._paging.forward_context import ForwardContext, RerunContext, TracedContext
from memlab._paging.micro_batches import in_micro_batches, repeated_blocks
from memlab._paging.model_pager import ModelPager
from memlab._paging.paged_tensor import Weight
from memlab._paging.plan_state import ADDED, PlanState, Stage
from memlab._paging.settings import Settings
from memlab._paging.tensor_memory import move_together
from memlab._paging.torch_private import tree_leaves, without_dispatch_modes


class SingleDevicePager(ModelPager):
    """A model that is paged to one device: its forwards, for which the pipeline loads units."""

    def __init__(
        self, model: nn.Module, weights: list[Weight], memory: ArenaMemory, settings: Settings, state: PlanState
    ) -> None:
        super().__init__(model, memory, state)
        self.settings = settings
        self.blocks = repeated_blocks(model) if settings.micro_batch else set()
        methods = [(module, "forward") for module in model.modules()]
        methods += [(module, name) for module in model.modules() for name in entry_methods(module)]
        wrapped_modules = [WrappedModule(module, index, name) for index, (module, name) in enumerate(methods)]
        self.pager = DevicePager(model, weights, wrapped_modules, self.blocks, memory, settings, state, self.patch)
        self.pagers = [self.pager]
        self.clock = self.pager.clock
        self.called_this_stage: set[WrappedModule] = set()  # Modules of outermost calls in this stage.
        self.measured_call: tuple[WrappedModule, list[int]] | None = None  # The last one, and the size of its input.
        self._watch(wrapped_modules, self.pager.thread_state)

    def _accept_edits(self) -> None:
        """Accepts edits, and tensors added to the model."""
        self._keep_added()
        super()._accept_edits()

    @torch.no_grad()
    @torch.inference_mode(False)
    def _keep_added(self) -> None:
        """Moves tensors that were added to the model after it was paged to the device, where they stay.

        Raises: RuntimeError for a weight that another module now holds too.
        """
        added = self.known.added()
        ours = {id(paged.tensor) for paged in self.pager.pool.edits.tensors}
        tied = next((name for name, tensor in added.items() if id(tensor) in ours), None)
        if tied is not None:
            raise RuntimeError(f"{tied} is a weight of the paged model: unpage the model before tying it to another module")
        for tensors in by_storage(added.values()):
            move_together(tensors, self.settings.device)
            self.state.add_resident(ADDED, max(tensor.nbytes for tensor in tensors))
            self.patch.residents.update(map(id, tensors))
        if added:
            self.patch.guard()
            self.known.add()

    def _cure_of_added(self) -> str:
        return (
            f"call model.memlab.refresh() to move it to {self.settings.device} for good, or memlab.unpage(model) before "
            "adding to the model"
        )

    def _wrapper(self, wrapped: WrappedModule, thread: threading.local) -> Callable[[Callable[..., Any]], Any]:
        if wrapped.method != "forward":
            return functools.partial(self._entry, wrapped, thread)
        watch = super()._wrapper(wrapped, thread)
        if wrapped.module not in self.blocks:
            return watch
        pieces = self.settings.micro_batch or 0
        return lambda original: watch(in_micro_batches(wrapped.module, original, pieces, self._rerun_context))

    def _entry(self, wrapped: WrappedModule, thread: threading.local, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a method that computes with the module's tensors. A call with tensors outside a forward is a forward."""

        def method(*args: Any, **kwargs: Any) -> Any:
            if thread.context is not None or device_of_first((args, kwargs)) is None:
                return original(*args, **kwargs)
            return self._outermost_call(wrapped, original, args, kwargs)

        return method

    def _rerun_context(self) -> AbstractContextManager[None] | None:
        """Returns, in the traced forward, a context without tracing. Requires mapped weights, because none is loaded."""
        tensors = self.pager.pool.edits.tensors
        if (
            self.pager.stages.stage is not Stage.TRACING
            or any(paged.unloaded is None for paged in tensors)
            or self.model.training
        ):
            return None
        return self._rerun_scope()

    @contextmanager
    def _rerun_scope(self) -> Iterator[None]:
        context, self.pager.thread_state.context = self.pager.thread_state.context, RerunContext()
        try:
            with without_dispatch_modes():
                yield
        finally:
            self.pager.thread_state.context = context

    def _learning_forward(self, wrapped: WrappedModule, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs a tracing or measuring forward, one thread at a time."""
        stages = self.pager.stages
        if self.settings.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "the first two forwards of a paged model are traced and timed: run it three times before capturing it in "
                f"a CUDA graph (stage: {stages.stage.value})"
            )
        if wrapped in self.called_this_stage:
            # The second outermost call of this module: the calls before it were a whole forward.
            self._advance()
        result = self._run(wrapped, original, args, kwargs)
        self.called_this_stage.add(wrapped)
        if stages.stage is Stage.TRACING:
            complete = stages.all_weights_used()
        else:
            complete = stages.stage is Stage.MEASURING and stages.note_times()
            self.measured_call = wrapped, _sizes(args, kwargs)
        if complete:
            self._advance()
        return result

    def _checked_forward(self, wrapped: WrappedModule, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs a forward that checks the measured one, if it is a call of the same module with an input of the same size."""
        stages = self.pager.stages
        with self.pager.forwards_lock:
            check = stages.next_check()
        is_comparable = (wrapped, _sizes(args, kwargs)) == self.measured_call
        before, began = self.pager.pipeline.counters(), time.perf_counter_ns()
        try:
            result = self._run(wrapped, original, args, kwargs)
        finally:
            self.pager.pipeline.timed(False)
        host_ns = time.perf_counter_ns() - began
        with self.pager.forwards_lock:
            after = self.pager.pipeline.counters()
            was_alone = not self.pager.active_forwards and after["forwards"] == before["forwards"] + 1
            if is_comparable and was_alone:
                stages.check(check, host_ns, after["copies"] - before["copies"])
        return result

    def _advance(self) -> None:
        self.pager.stages.advance()
        self.called_this_stage.clear()

    def _forward(self, wrapped: WrappedModule, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        run = self._checked_forward if self.pager.stages.checks > 0 else self._run
        return run(wrapped, original, args, kwargs)

    def _run(self, wrapped: WrappedModule, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.pager.make_trained_resident()
        device = self.settings.device
        if device.type != "cpu":
            args, kwargs = to_device(args, device), to_device(kwargs, device)
        # In this order: the saved-tensor hooks depend on the placement, which the start of a forward may change.
        with (
            self.pager.forward_scope(),
            nullcontext() if torch.is_inference_mode_enabled() else self.pager.stages.saved_tensors(),
        ):
            context = self.pager.thread_state.context
            if isinstance(context, ForwardContext | TracedContext):
                context.enter(wrapped)
            # A weight that the model returns is returned in its mapped form, which no other weight overwrites.
            return with_replaced(original(*args, **kwargs), self.pager.pool.stable_results)


def _sizes(args: Any, kwargs: Any) -> list[int]:
    # Not `tensors_in`, which belongs to the tracer: in a compiled model, Dynamo would trace its frame.
    return [leaf.numel() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
