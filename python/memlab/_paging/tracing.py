"""The trace of a forward: the weights that each operation uses, between module calls.

The first forward runs eagerly under a dispatch mode that sees every operation with its tensors. Module boundaries (a call
begins, a call ends) cut it into segments. A segment's weights must be loaded from its boundary to the next. The trace
therefore also covers a module that reads another's weight without calling it (``F.linear(x, self.embedding.weight)``,
attention and ``out_proj.weight``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from memlab._paging.paged_tensor import Weight, shared_write
from memlab._paging.tensor_memory import all_bytes, view_of
from memlab._paging.torch_private import (
    EMBEDDINGS,
    OperationMode,
    OpOverload,
    may_return_view,
    storage_key,
    tensor_key,
    tree_leaves,
    tree_map_only,
    use_count,
    writes_to,
)


@dataclass
class Segment:
    """The operations between two module boundaries."""

    key: int  # Of the boundary at its start; see `WrappedModule`.
    calls: tuple[int, ...]  # The modules being called, outermost first, as numbers of calls.
    weights: dict[Weight, None] = field(default_factory=dict)


@dataclass
class Trace:
    """The use of the model's weights in one forward."""

    segments: list[Segment] = field(default_factory=list)
    modules: list[int] = field(default_factory=list)  # Per call: the module that was called.
    written: set[Weight] = field(default_factory=set)
    gathered: dict[Weight, int] = field(default_factory=dict)  # Most bytes read by embedding lookups.
    computed: set[Weight] = field(default_factory=set)  # Used by other operations than lookups.
    escaping: set[Weight] = field(default_factory=set)  # A view of them outlives the segment in which it was created.
    activations: int = 0  # Peak bytes on the GPU, without weights and earlier memory.

    def extend(self, later: Trace) -> None:
        """Adds a later forward, because a model may run in parts, its encoder first."""
        before = len(self.modules)
        for segment in later.segments:
            segment.calls = tuple(call + before for call in segment.calls)
        self.segments.extend(later.segments)
        self.modules.extend(later.modules)
        self.written |= later.written
        self.computed |= later.computed
        self.escaping |= later.escaping
        for weight, read in later.gathered.items():
            self.gathered[weight] = max(self.gathered.get(weight, 0), read)
        self.activations = max(self.activations, later.activations)


class Tracer(OperationMode):
    """Records a `Trace`. On a GPU, operations get copies of their weights, which are freed at the next boundary."""

    def __init__(self, weights: list[Weight], device: torch.device, reads_rows: bool) -> None:
        super().__init__()
        self.trace = Trace()
        self.device = device
        self.reads_rows = reads_rows  # Lookups read the rows they need over the bus.
        self.weights: dict[int | None, Weight] = {storage_key(_storage(weight)): weight for weight in weights}
        self.copies: dict[Weight, torch.UntypedStorage] = {}
        self.calls: list[int] = []
        self.before = self._allocated()
        self.viewed: dict[Weight, None] = {}  # Weights of which a view was created in this segment.
        self.use_counts = {weight: _use_count(weight) for weight in weights}

    def boundary(self, key: int) -> None:
        module, ends = divmod(key, 2)
        if ends:
            # A call that an exception ended reaches no boundary. It ends with its caller.
            while self.calls and self.trace.modules[self.calls.pop()] != module:
                pass
        else:
            self.calls.append(len(self.trace.modules))
            self.trace.modules.append(module)
        self._note_escaping()
        self.trace.segments.append(Segment(key, tuple(self.calls)))
        self.copies.clear()

    # torch.cond, flex_attention: their arguments are visible, the operations inside them are not.
    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            return func(*tree_map_only(Tensor, self._computed, args), **tree_map_only(Tensor, self._computed, kwargs))
        if may_return_view(func):
            result = func(*args, **kwargs)
            self._note_view_or_use(args, kwargs, result)
            return result
        written = written_by(func, args, kwargs)

        def traced(tensor: Tensor) -> Tensor:
            weight = self._weight(tensor)
            if weight is None:
                return tensor
            if any(tensor is other for other in written):
                if weight.shared:
                    raise shared_write([weight.name])
                self._use(weight)
                self.trace.written.add(weight)
                return tensor
            if func in EMBEDDINGS and tensor is args[0]:
                self._use(weight)
                read = args[1].numel() * tensor.stride(0) * tensor.element_size()
                self.trace.gathered[weight] = max(self.trace.gathered.get(weight, 0), read)
                return tensor if self.reads_rows and weight.mapped_storage is not None else self._on_device(weight, tensor)
            return self._computed(tensor)

        result = func(*tree_map_only(Tensor, traced, args), **tree_map_only(Tensor, traced, kwargs))
        weights = sum(copy.nbytes() for copy in self.copies.values())
        self.trace.activations = max(self.trace.activations, self._allocated() - self.before - weights)
        return result

    def _note_view_or_use(self, args: Any, kwargs: Any, result: Any) -> None:
        """Records a view, or a read, after an operation that may return a view of an argument.

        (In inference mode ``to``, ``reshape`` and ``contiguous`` are such operations, with or without a copy.)
        """
        results = {id(self._weight(tensor)) for tensor in tensors_in(result)}
        for tensor in tensors_in((args, kwargs)):
            weight = self._weight(tensor)
            if weight is None:
                continue
            if id(weight) in results:
                self.viewed[weight] = None
            else:
                self._compute(weight)

    def _note_escaping(self) -> None:
        """Records, at the end of a segment, weights with live views."""
        for weight in self.viewed:
            if _use_count(weight) > self.use_counts[weight]:
                self.trace.escaping.add(weight)
        self.viewed.clear()

    def finish(self) -> Trace:
        """Returns the trace, once the forward has ended."""
        self._note_escaping()
        return self.trace

    def _use(self, weight: Weight) -> None:
        self.trace.segments[-1].weights[weight] = None

    def _compute(self, weight: Weight) -> None:
        """Records the use of a weight by another operation than a lookup."""
        self._use(weight)
        self.trace.computed.add(weight)

    def _computed(self, tensor: Tensor) -> Tensor:
        weight = self._weight(tensor)
        if weight is None:
            return tensor
        self._compute(weight)
        return self._on_device(weight, tensor)

    def _weight(self, tensor: Tensor) -> Weight | None:
        return self.weights.get(tensor_key(tensor))

    def _on_device(self, weight: Weight, tensor: Tensor) -> Tensor:
        if self.device.type == "cpu":
            return tensor
        if weight not in self.copies:
            assert weight.arena_storage is not None
            self.copies[weight] = all_bytes(weight.arena_storage).to(self.device).untyped_storage()
        copy = view_of(self.copies[weight], tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride())
        # See `PagedTensor.twin_over`: in inference mode `matmul` is one operation.
        return copy.requires_grad_(tensor.requires_grad)

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0


def _storage(weight: Weight) -> torch.UntypedStorage:
    """Returns the memory of a weight that a traced forward finds."""
    storage = weight.mapped_storage or weight.arena_storage
    assert storage is not None
    return storage


def _use_count(weight: Weight) -> int:
    """Returns the number of tensors that use that memory."""
    return use_count(storage_key(_storage(weight)))


def tensors_in(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def written_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Returns the tensors that an operation writes to. (Higher-order operations themselves write to none.)"""
    found: list[Tensor] = []
    for position, name in writes_to(func) if isinstance(func, OpOverload) else []:
        found += tensors_in(args[position] if position < len(args) else kwargs.get(name))
    return found
