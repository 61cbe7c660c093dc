"""The cost of each module of a model for a batch: times of forward and backward, and bytes that autograd saves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from memlab._batches.nested import Samples, call
from memlab._batches.state import Buffers, RandomState
from memlab._paging.torch_private import tensor_key, tree_leaves

# The first step loads kernels.
_STEPS = 2


@dataclass(frozen=True)
class ModuleCost:
    """The cost of a module, with all modules within it, for a batch."""

    #: Milliseconds of all calls together.
    forward_ms: float
    backward_ms: float
    #: Bytes per sample that autograd saves until backward, without parameters.
    saved_nbytes: int


def module_costs(model: nn.Module, inputs: Any) -> dict[str, ModuleCost]:
    """Runs forward and backward of a small batch twice, and measures the second. Gradients, buffers and random numbers are
    restored.

    Raises:
        ValueError: the batch has no samples.
    """
    samples = Samples(inputs)
    if len(samples) == 0:
        raise ValueError("measuring the modules needs a batch of at least one sample")
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    buffers, random = Buffers(model), RandomState({device})
    try:
        for _ in range(_STEPS):
            measured = _Measured(model, device)
            with measured.hooked(), torch.enable_grad():
                outputs = call(model, samples.piece(range(len(samples)), device))
            measured.backward(outputs)
    finally:
        buffers.set_before()
        random.restore()
    return measured.costs(len(samples))


@dataclass
class _Calls:
    """The calls of one module: begin and end of its forwards and backwards, and the bytes saved meanwhile."""

    forwards: list[tuple[Any, Any]] = field(default_factory=list)
    backwards: list[_Backward] = field(default_factory=list)
    saved_nbytes: int = 0


@dataclass
class _Backward:
    """The backward of one call: from the gradient of its outputs to that of its inputs."""

    began: Any = None
    ended: Any = None


class _Measured:
    """One forward and backward."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model = model
        self._is_cuda = device.type == "cuda"
        self._calls = {module: _Calls() for module in model.modules()}
        # The running modules, the innermost last, each with its begin and the graph nodes of its inputs.
        self._running: list[tuple[nn.Module, Any, list[Any]]] = []
        self._storages = {tensor_key(parameter) for parameter in model.parameters()}

    def _now(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _milliseconds(self, began: Any, ended: Any) -> float:
        return float(began.elapsed_time(ended)) if self._is_cuda else (ended - began) * 1e3

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """A block in which the forwards of modules are recorded."""
        handles = [module.register_forward_pre_hook(self._begins, with_kwargs=True) for module in self._calls]
        handles += [module.register_forward_hook(self._ends, prepend=True) for module in self._calls]
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._saved, lambda tensor: tensor):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _begins(self, module: nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        # Recorded now, since an in-place operation gives its input another graph node.
        tensors = [leaf for leaf in tree_leaves((inputs, keywords)) if isinstance(leaf, Tensor)]
        self._running.append((module, self._now(), [one.grad_fn for one in tensors if one.grad_fn is not None]))

    def _ends(self, module: nn.Module, _inputs: Any, outputs: Any) -> None:
        _, began, origins = self._running.pop()
        calls, backward = self._calls[module], _Backward()
        calls.forwards.append((began, self._now()))

        def backward_begins(_gradients: Any) -> None:
            if backward.began is None:
                backward.began = self._now()
                calls.backwards.append(backward)

        def backward_ends(_gradients: Any) -> None:
            backward.ended = self._now()

        for leaf in tree_leaves(outputs):
            if isinstance(leaf, Tensor) and leaf.grad_fn is not None:
                leaf.grad_fn.register_prehook(backward_begins)
        for origin in origins:
            origin.register_prehook(backward_ends)

    def _saved(self, tensor: Tensor) -> Tensor:
        key = tensor_key(tensor)
        if key is not None and key not in self._storages:
            self._storages.add(key)
            for module in {module for module, _, _ in self._running}:
                self._calls[module].saved_nbytes += tensor.untyped_storage().nbytes()
        return tensor

    def backward(self, outputs: Any) -> None:
        """Backward of the outputs, to the parameters, without adding to their gradients."""
        ends = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        if ends and trained:
            torch.autograd.grad(ends, trained, [torch.ones_like(one) for one in ends], allow_unused=True)
        over = self._now()
        for calls in self._calls.values():
            for backward in calls.backwards:
                if backward.ended is None:  # Its inputs need no gradient, as those of the first module.
                    backward.ended = over
        if self._is_cuda:
            over.synchronize()

    def costs(self, samples: int) -> dict[str, ModuleCost]:
        """The costs by module name."""
        return {
            name: ModuleCost(
                forward_ms=sum(self._milliseconds(*pair) for pair in self._calls[module].forwards),
                backward_ms=sum(self._milliseconds(one.began, one.ended) for one in self._calls[module].backwards),
                saved_nbytes=self._calls[module].saved_nbytes // samples,
            )
            for name, module in self._model.named_modules()
        }
