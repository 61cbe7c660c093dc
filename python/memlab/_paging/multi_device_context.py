"""A thread in a forward over several devices: its device, and the tensors that moved there with it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from memlab._paging.boundaries import WrappedModule
from memlab._paging.cut import Home
from memlab._paging.device_transfer import with_tensors
from memlab._paging.forward_context import ForwardContext
from memlab._paging.survey import SurveyTracer
from memlab._paging.torch_private import version_of


class Hops:
    """Number of device changes in forwards, and the bytes moved by them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.forwards = 0
        self.count = 0
        self.nbytes = 0

    def begin_forward(self) -> None:
        with self.lock:
            self.forwards += 1

    def add(self, count: int, nbytes: int) -> None:
        with self.lock:
            self.count += count
            self.nbytes += nbytes


def inputs_on(
    args: tuple[Any, ...], kwargs: dict[str, Any], devices: Sequence[torch.device], at: int
) -> tuple[tuple[Any, ...], dict[str, Any], bool]:
    """Returns the arguments of a forward that begins on device `at`, and True if some are on other devices of the model."""
    device = devices[at]
    if device.type == "cpu":
        return args, kwargs, False
    others = False

    def moved(tensor: Tensor) -> Tensor:
        is_number = tensor.dim() == 0 and tensor.device.type == "cpu"
        return tensor if is_number or tensor.device == device else tensor.to(device)

    def moved_within(tensor: Tensor) -> Tensor:
        nonlocal others
        stays = tensor.device in devices
        others |= stays and tensor.device != device
        return tensor if stays else moved(tensor)

    args, kwargs = _by_argument(args, kwargs, moved, moved_within)
    return args, kwargs, others


def _by_argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], moved: Callable[[Tensor], Tensor], within: Callable[[Tensor], Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Applies `moved` to arguments that are tensors, and `within` to tensors inside other arguments.

    A container may hold an earlier forward's tensors for each layer, such as a KV cache. It is not copied, because the model
    may write to it.
    """

    def argument(value: Any) -> Any:
        return moved(value) if isinstance(value, Tensor) else with_tensors(value, within)

    return tuple(map(argument, args)), {name: argument(value) for name, value in kwargs.items()}


class SurveyContext:
    """A thread in the surveyed forward, which runs on one device."""

    def __init__(self, tracer: SurveyTracer) -> None:
        self.tracer = tracer

    def call(self, wrapped: WrappedModule, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self.tracer.boundary(wrapped.enter_key)
        self.tracer.arguments((args, kwargs))
        result = original(*args, **kwargs)
        self.tracer.boundary(wrapped.exit_key)
        return result


class MultiDeviceContext:
    """A thread in a forward for which each device loads the units of its stretch."""

    def __init__(
        self,
        contexts: Sequence[ForwardContext],
        boundaries: Sequence[Sequence[WrappedModule]],
        homes: Sequence[Home | None],
        devices: Sequence[torch.device],
        at: int,
        hops: Hops,
        moves: bool,
    ) -> None:
        self.contexts = contexts  # One for each stretch, as are `boundaries` and `devices`.
        self.boundaries = boundaries
        self.homes = homes
        self.devices = devices
        self.at = at  # Stretch that the thread is in.
        self.moves = moves  # Tensors are on several devices, as after the first border.
        self.at_home = False  # It is in a module that lies in one stretch, so nothing in it moves.
        self.hops = hops
        # By tensor, stretch and whether gradients are enabled: the tensor, its version, and its copy. Masks and positions
        # are used by every layer, and are copied once.
        self.copies: dict[tuple[int, int, bool], tuple[weakref.ref[Tensor], int, Tensor]] = {}

    def call(self, wrapped: WrappedModule, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        index = wrapped.index
        args, kwargs, at_home = self._enter(index, args, kwargs)
        try:
            result = original(*args, **kwargs)
            self.contexts[self.at].exit(self.boundaries[self.at][index])
        finally:
            if at_home:
                self.at_home = False
        return result

    def _enter(self, index: int, args: Any, kwargs: Any) -> tuple[Any, Any, bool]:
        """Begins a module's call. Returns its arguments on its device, and True if the call has to reset `at_home`."""
        home = None if self.at_home else self.homes[index]
        if home is not None:
            crosses = home.stretch != self.at
            if crosses:
                self._cross(home.stretch)
            if self.moves:
                within = self._here if crosses or home.whole else self._known
                args, kwargs = _by_argument(
                    args, kwargs, lambda tensor: self._here(tensor, crosses), lambda tensor: within(tensor, crosses)
                )
            self.at_home = home.whole
        self.contexts[self.at].enter(self.boundaries[self.at][index])
        return args, kwargs, home is not None and home.whole

    def device(self) -> torch.device:
        """Device that the thread is on."""
        return self.devices[self.at]

    def _cross(self, stretch: int) -> None:
        self.contexts[self.at].pause()
        self.at, self.moves = stretch, True
        self.hops.add(1, 0)
        device = self.devices[stretch]
        if device.type == "cuda":
            torch.cuda.set_device(device)  # Modules may create tensors on "cuda".

    def _known(self, tensor: Tensor, crosses: bool) -> Tensor:
        """Leaves the tensor where it is, if that is a device of the model: its layers move their arguments."""
        return tensor if tensor.device in self.devices else self._here(tensor, crosses)

    def _here(self, tensor: Tensor, crosses: bool) -> Tensor:
        """Returns the tensor on the device that the thread is on.

        PyTorch makes the copy wait for both devices' current streams, and these streams for the copy. The host does not
        wait.
        """
        key = id(tensor), self.at, torch.is_grad_enabled()
        found, version, copy = self.copies.get(key, (None, 0, tensor))
        if found is not None and found() is tensor and version == version_of(tensor):
            return copy
        device = self.devices[self.at]
        if device.type == "cpu":
            # Devices of the CPU share one memory: tensors that arrive after the hop are already on this device.
            if not crosses or tensor.dim() == 0:
                return tensor
            copy = tensor.clone()
        elif tensor.device.type != "cuda" or tensor.device == device:
            return tensor
        else:
            copy = tensor.to(device, non_blocking=True)
        self.hops.add(0, copy.nbytes)
        copies = self.copies
        self.copies[key] = weakref.ref(tensor, lambda _: copies.pop(key, None)), version_of(tensor), copy
        return copy
