"""A model over several devices: the first forward surveys it, and each stretch of it is paged to a device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from memlab._paging.arena import ArenaMemory
from memlab._paging.boundaries import WrappedModule
from memlab._paging.clock import Clock
from memlab._paging.cross_device_mode import CrossDeviceMode
from memlab._paging.cut import Cut
from memlab._paging.device_transfer import with_replaced, with_tensors
from memlab._paging.forward_context import ForwardContext, TracedContext
from memlab._paging.model_pager import ModelPager
from memlab._paging.multi_device_context import Hops, MultiDeviceContext, SurveyContext, inputs_on
from memlab._paging.multi_device_plan import sum_up
from memlab._paging.paged_tensor import Weight
from memlab._paging.plan_state import PlanState, Stage
from memlab._paging.saved_tensors import SavedTensors
from memlab._paging.settings import Settings
from memlab._paging.stretch_pagers import SurveyPager, capacities_of, cut_into, share_touches, stretch_pager, survey_pager
from memlab._paging.survey import Survey, SurveyTracer
from memlab._paging.warn import warn


class ThreadContext(threading.local):
    context: SurveyContext | MultiDeviceContext | None = None


class MultiDevicePager(ModelPager):
    """Wraps the forwards of a model that is paged to several devices."""

    def __init__(
        self, model: nn.Module, weights: list[Weight], memory: ArenaMemory, settings: list[Settings], state: PlanState
    ) -> None:
        super().__init__(model, memory, state)
        self.weights = weights
        self.settings = settings  # One for each device.
        self.clock = Clock(settings[0].device)
        self.hops = Hops()
        self.thread = ThreadContext()
        self.called_this_stage: set[int] = set()  # Indices of modules of outermost calls in this stage.
        self.to_move: set[int] = set()  # Modules whose first call after the survey is still to come.
        self.modules = list(model.modules())
        self.cut: Cut | None = None
        self.boundaries: list[list[WrappedModule]] = []
        self.saved: tuple[list[SavedTensors], SavedTensors] | None = None
        self._begin_survey()
        self._watch(self._wrapped(), self.thread)

    def _begin_survey(self) -> None:
        self.surveyor: SurveyPager | None = survey_pager(
            self.model, self.weights, self._wrapped(), self.memory, self.settings[0], self.state, self.patch
        )
        self.pagers = [self.surveyor]  # Until each stretch has its own.

    def _wrapped(self) -> list[WrappedModule]:
        return [WrappedModule(module, index) for index, module in enumerate(self.modules)]

    def _counters(self) -> dict[str, int]:
        of_hops = {"forwards": self.hops.forwards, "hops": self.hops.count, "hop_bytes": self.hops.nbytes}
        return super()._counters() | of_hops

    def _refuse_call(self) -> None:
        super()._refuse_call()
        if self.settings[0].device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(
                "a CUDA graph is of one device, and this model is paged to several: page it to one to capture it "
                '(memlab.unpage(model), then memlab.page(model, "cuda:0"))'
            )

    def _learning_forward(self, wrapped: WrappedModule, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Runs a surveyed or measuring forward, one thread at a time."""
        index = wrapped.index
        if index in self.called_this_stage:
            # The second outermost call of this module: the calls before it were a whole forward.
            self._advance()
        moving = index in self.to_move
        result = self._forward(wrapped, original, args, kwargs)
        if moving:
            # Its times are useless: tensors that the survey left on the first device moved.
            self.to_move.discard(index)
            return result
        self.called_this_stage.add(index)
        if self.surveyor is not None:
            complete = self.surveyor.stages.all_weights_used()
        else:
            complete = self.state.stage is Stage.MEASURING and all([pager.stages.note_times() for pager in self.pagers])
        if complete:
            self._advance()
        return result

    def _advance(self) -> None:
        if self.surveyor is not None:
            self._page_stretches(self.surveyor)
            self.to_move = set(self.called_this_stage)
        else:
            for pager in self.pagers:
                pager.stages.advance()
        self.called_this_stage.clear()
        self._sum_up()

    def _sum_up(self) -> None:
        sum_up(self.state, [pager.state for pager in self.pagers])

    def _page_stretches(self, surveyor: SurveyPager) -> None:
        """Cuts the model according to its survey, and pages each stretch to its device."""
        survey = surveyor.survey
        surveyor.stop()
        self.surveyor, self.pagers = None, []
        try:
            capacities = capacities_of(self.settings, self.memory, self.weights, survey)
            self.cut = cut_into(capacities, survey, self.weights, self.settings[0].device)
            self.boundaries = [self._wrapped() for _ in self.cut.stretches]
            for stretch, wrapped in zip(self.cut.stretches, self.boundaries, strict=True):
                device_capacity, settings = capacities[stretch.device], self.settings[stretch.device]
                is_first = stretch.device == 0
                self.pagers.append(
                    stretch_pager(
                        self.model, stretch, wrapped, self.memory, settings, device_capacity, self.patch, is_first=is_first
                    )
                )
                self.pagers[-1].stages.advance()
        except BaseException:
            for pager in self.pagers:
                pager.stop()
            self._begin_survey()
            raise
        for weight in self.weights:
            weight.drop_references()
        self.weights = []
        self._note_idle(survey)

    def _note_idle(self, survey: Survey) -> None:
        """Records why devices are idle, if the model cannot be cut."""
        if len(self.pagers) == len(self.settings) or survey.borders():
            return
        why = next(iter(survey.reasons().values()), "it is one module")
        note = f"this model cannot be cut, and runs on {self.settings[0].device} alone: {why}"
        self.state.notes.append(note)
        warn(f"memlab: {note}")

    def _forward(self, wrapped: WrappedModule, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._make_trained_resident()
        first = self.settings[0].device
        at, home = 0, None if self.cut is None else self.cut.homes[wrapped.index]
        if home is not None:
            at = home.stretch
        devices = [pager.settings.device for pager in self.pagers]
        args, kwargs, moves = inputs_on(args, kwargs, devices, at)
        # The clock is on the first device, where the result comes back.
        with self.clock if self.surveyor is None else nullcontext(), self._scope(devices, at, moves) as context:
            hooks: AbstractContextManager[Any] = (
                nullcontext() if torch.is_inference_mode_enabled() else self._saved_tensors()
            )
            moving: AbstractContextManager[Any] = nullcontext()
            if wrapped.index in self.to_move and first.type == "cuda" and isinstance(context, MultiDeviceContext):
                moving = CrossDeviceMode(context.device)
            with hooks, moving:
                result = context.call(wrapped, original, args, kwargs)
            for pager in self.pagers:
                result = with_replaced(result, pager.pool.stable_results)
            if first.type == "cuda":
                result = with_tensors(result, lambda tensor: _back_on(tensor, first))
            return result

    @contextmanager
    def _scope(self, devices: list[torch.device], at: int, moves: bool) -> Iterator[SurveyContext | MultiDeviceContext]:
        """Marks the calling thread as in a forward, which begins in stretch `at`. See `MultiDeviceContext` for `moves`."""
        if self.cut is not None:
            share_touches(self.cut.stretches, self.pagers)
        with ExitStack() as stack:
            if devices[at].type == "cuda":
                stack.enter_context(torch.cuda.device(devices[at]))  # Restores the caller's device at the end.
            for pager in self.pagers:
                stack.enter_context(pager.forward_scope())
            contexts = [pager.thread_state.context for pager in self.pagers]
            context: SurveyContext | MultiDeviceContext
            if isinstance(contexts[0], TracedContext):
                assert isinstance(contexts[0].tracer, SurveyTracer)
                context = SurveyContext(contexts[0].tracer)
            else:
                assert self.cut is not None
                of_devices = [c for c in contexts if isinstance(c, ForwardContext)]
                context = MultiDeviceContext(of_devices, self.boundaries, self.cut.homes, devices, at, self.hops, moves)
                stack.callback(context.copies.clear)
            self.hops.begin_forward()
            self.thread.context = context
            try:
                yield context
            finally:
                self.thread.context = None

    def _saved_tensors(self) -> SavedTensors:
        """Returns the hooks of all devices for tensors that autograd saves.

        They are created again when a device gets another placement.
        """
        parts = [pager.stages.saved_tensors() for pager in self.pagers]
        if self.saved is None or self.saved[0] != parts:
            self.saved = parts, SavedTensors.joined(parts)
        return self.saved[1]

    def _make_trained_resident(self) -> None:
        if not torch.is_grad_enabled():
            return
        trained = [weight for pager in self.pagers for weight in pager.stages.weights if weight.is_trained]
        if not trained:
            return
        if self.surveyor is not None:
            raise RuntimeError(
                f"{trained[0].name} requires a gradient, and on which device it is to train is known after the first "
                "forward: run this one under torch.no_grad()"
            )
        for weight in trained:
            if weight.other_stretches:
                raise RuntimeError(
                    f"{weight.name} would be trained in this forward, and modules on several devices have it: freeze it, or "
                    "page the model to one device"
                )
        for pager in self.pagers:
            pager.make_trained_resident()
        self._sum_up()


def _back_on(tensor: Tensor, device: torch.device) -> Tensor:
    if tensor.device.type != "cuda" or tensor.device == device:
        return tensor
    return tensor.to(device, non_blocking=True)
