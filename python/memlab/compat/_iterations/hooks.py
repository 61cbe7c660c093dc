"""Hooks through which `memlab.memory_profiler` observes an iteration: ends of forwards, gradients, optimizer steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from memlab import _native
from memlab.compat._iterations.table import layer_label
from memlab.compat._tensors.module_outputs import LiveStorages, tensor_nbytes, tensors_in

# Reads the live feature maps of a model on a GPU by layer; None: find them in the outputs of modules.
FeatureMaps = Callable[[], "dict[str, int] | None"]


class IterationHooks:
    """Watches a model from its construction to `remove`. Keeps no tensor, and neither model nor optimizers."""

    def __init__(self, model: nn.Module, read_feature_maps: FeatureMaps) -> None:
        self.is_recording = False  # True if this iteration is measured; otherwise hooks return at once.
        self.feature_maps: dict[str, int] = {}
        self.gradients: dict[str, int] = {}
        self.intermediate_gradients = 0
        self._read_feature_maps = read_feature_maps
        self._depth = 0  # Of calls of modules.
        self._outputs, self._output_gradients = LiveStorages(), LiveStorages()
        self._parameters = [weakref.ref(parameter) for parameter in model.parameters()]
        self._optimizers: list[weakref.ref[Any]] = []
        self._handles: list[Any] = []
        for name, module in model.named_modules():
            self._handles.append(module.register_forward_pre_hook(_ModuleHook(self._forward_begins, name)))
            ends = _ModuleHook(self._forward_ends, name)
            self._handles.append(module.register_forward_hook(ends, always_call=True))
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                hook = _ParameterHook(self, name)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))
        self._handles.append(register_optimizer_step_post_hook(self._after_step))

    def remove(self) -> None:
        """Removes the hooks."""
        self.is_recording = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def begin_iteration(self, is_recording: bool) -> None:
        """Clears the figures of the last iteration."""
        self.is_recording = is_recording
        self.feature_maps, self.gradients, self.intermediate_gradients = {}, {}, 0
        self._depth = 0
        self._outputs.clear()
        self._output_gradients.clear()

    def optimizer_state(self, devices: Iterable[torch.device]) -> int:
        """Returns the bytes, on these devices, of the state of optimizers that have stepped with the model's parameters."""
        there = set(devices)
        tensors = {
            id(tensor): tensor
            for known in self._optimizers
            if (optimizer := known()) is not None
            for tensor in _native.optimizer_tensors(optimizer, Tensor)
            if tensor.device in there
        }
        return sum(map(tensor_nbytes, tensors.values()))

    def _forward_begins(self, name: str, module: nn.Module, inputs: Any) -> None:
        if not self.is_recording:
            return
        if self._depth == 0:  # Inputs, parameters and buffers of the model are not feature maps.
            for tensor in (*tensors_in(inputs), *module.parameters(), *module.buffers()):
                self._outputs.leave_out(tensor)
        self._depth += 1

    def _forward_ends(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        if not self.is_recording:
            return
        self._depth = max(0, self._depth - 1)
        for tensor in tensors_in(output):
            self._outputs.add(layer_label(name), tensor)
            if tensor.requires_grad and not tensor.is_leaf:
                try:
                    tensor.register_hook(self._output_gradient)
                except RuntimeError:  # Inside functorch's transforms tensors have no hooks.
                    continue
        if self._depth == 0:
            found = self._read_feature_maps()
            if found is None:
                found = self._outputs.by_layer()
            if sum(found.values()) > sum(self.feature_maps.values()):
                self.feature_maps = found

    def _output_gradient(self, gradient: Tensor) -> None:
        if self.is_recording:
            self._output_gradients.add("output", gradient)
            live = sum(self._output_gradients.by_layer().values())
            self.intermediate_gradients = max(self.intermediate_gradients, live)

    def _after_step(self, optimizer: Any, arguments: Any, named: Any) -> None:
        if all(known() is not optimizer for known in self._optimizers):
            ours = {id(parameter) for known in self._parameters if (parameter := known()) is not None}
            if any(id(parameter) in ours for group in optimizer.param_groups for parameter in group["params"]):
                self._optimizers.append(weakref.ref(optimizer))


class _ModuleHook:
    """A hook of one module. In a copy of the module, or a file that it is saved to, it becomes a hook that does nothing."""

    def __init__(self, called: Callable[..., None], name: str) -> None:
        self._called, self._name = called, name

    def __call__(self, module: nn.Module, *arguments: Any) -> None:
        if not torch.compiler.is_compiling():
            self._called(self._name, module, *arguments)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return _no_hook

    def __reduce__(self) -> Any:
        return _no_hook_again, ()


class _ParameterHook:
    """Records a gradient when it is accumulated. The gradient may be gone when the iteration ends."""

    def __init__(self, hooks: IterationHooks, name: str) -> None:
        self._hooks, self._name = hooks, name

    def __call__(self, parameter: Tensor) -> None:
        if self._hooks.is_recording:
            # Another hook may have consumed the gradient. It was as large as the parameter.
            gradient = parameter if parameter.grad is None else parameter.grad
            self._hooks.gradients[self._name] = max(tensor_nbytes(gradient), self._hooks.gradients.get(self._name, 0))


def _no_hook(*arguments: Any) -> None:
    """Replaces a hook in a copy of a model."""


def _no_hook_again() -> Callable[..., None]:
    return _no_hook
