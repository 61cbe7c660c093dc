"""One forward watched from below: which weight is used by which operation, and between which module calls.

The first forward runs eagerly under a dispatch mode that sees every operation with its real tensors. Module boundaries
(a call begins, a call ends) cut it into segments; a segment's weights must be loaded from its boundary to the next. What
a module's own code does with the weights of others (``F.linear(x, self.embedding.weight)``, attention that reads
``out_proj.weight`` without calling ``out_proj``) is so seen where it happens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from memlab._paging.paged_tensor import Weight, all_bytes, view_of

EMBEDDINGS = {torch.ops.aten.embedding.default, torch.ops.aten._embedding_bag.default}


@dataclass
class Segment:
    """What runs between two module boundaries."""

    key: int  # Of the boundary it begins with: 2 × the module's number when its call begins, one more when it ends.
    calls: tuple[int, ...]  # The modules being called, outermost first, as numbers of calls.
    weights: dict[Weight, None] = field(default_factory=dict)


@dataclass
class Trace:
    """What one forward did with the model's weights."""

    segments: list[Segment] = field(default_factory=list)
    modules: list[int] = field(default_factory=list)  # Per call: the module that was called.
    written: set[Weight] = field(default_factory=set)
    gathered: dict[Weight, int] = field(default_factory=dict)  # Bytes read by embedding lookups at most.
    computed: set[Weight] = field(default_factory=set)  # Used by anything else than a lookup.
    looked_at: set[Weight] = field(default_factory=set)  # Views of them outlive the segment they were made in.
    activations: int = 0  # Most bytes that the forward held on the GPU beside what was there before.

    def extend(self, later: Trace) -> None:
        """Adds a forward that came after: a model may be run in parts, the encoder first."""
        before = len(self.modules)
        for segment in later.segments:
            segment.calls = tuple(call + before for call in segment.calls)
        self.segments.extend(later.segments)
        self.modules.extend(later.modules)
        self.written |= later.written
        self.computed |= later.computed
        self.looked_at |= later.looked_at
        for weight, read in later.gathered.items():
            self.gathered[weight] = max(self.gathered.get(weight, 0), read)
        self.activations = max(self.activations, later.activations)


class Tracer(TorchDispatchMode):
    """Records a `Trace`. On a GPU, operations are given copies of the weights they use, which are freed at once."""

    def __init__(self, weights: list[Weight], device: torch.device, gathers: bool) -> None:
        super().__init__()
        self.trace = Trace()
        self.device = device
        self.gathers = gathers
        self.weights = {(w.reachable_storage or w.in_arena)._cdata: w for w in weights}  # type: ignore[union-attr]
        self.copies: dict[Weight, torch.UntypedStorage] = {}
        self.calls: list[int] = []
        self.before = self._allocated()
        self.viewed: dict[Weight, None] = {}  # In this segment.
        self.users = {w: _users(w) for w in weights}

    def boundary(self, key: int) -> None:
        module, ends = divmod(key, 2)
        if ends:
            # A call that an exception ended has said nothing: its callers' ends say it.
            while self.calls and self.trace.modules[self.calls.pop()] != module:
                pass
        else:
            self.calls.append(len(self.trace.modules))
            self.trace.modules.append(module)
        self._note_views()
        self.trace.segments.append(Segment(key, tuple(self.calls)))
        self.copies.clear()

    # torch.cond, flex_attention: what runs within them is not seen, what goes into them is.
    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):
            return func(*tree_map_only(Tensor, self._computed, args), **tree_map_only(Tensor, self._computed, kwargs))
        if _may_be_view(func):
            result = func(*args, **kwargs)
            self._look(args, kwargs, result)
            return result
        written = _written(func, args, kwargs)

        def seen(tensor: Tensor) -> Tensor:
            weight = self._weight(tensor)
            if weight is None:
                return tensor
            if any(tensor is other for other in written):
                self._use(weight)
                self.trace.written.add(weight)
                return tensor
            if func in EMBEDDINGS and tensor is args[0]:
                self._use(weight)
                read = args[1].numel() * tensor.stride(0) * tensor.element_size()
                self.trace.gathered[weight] = max(self.trace.gathered.get(weight, 0), read)
                return tensor if self.gathers else self._on_device(weight, tensor)
            return self._computed(tensor)

        result = func(*tree_map_only(Tensor, seen, args), **tree_map_only(Tensor, seen, kwargs))
        self.trace.activations = max(self.trace.activations, self._allocated() - self.before)
        return result

    def _look(self, args: Any, kwargs: Any, result: Any) -> None:
        """After an operation that may have returned its argument, seen from another side: if not, it has read it.

        (In inference mode ``to``, ``reshape`` and ``contiguous`` come here whole, whatever they do.)
        """
        results = {id(self._weight(tensor)) for tensor in _tensors(result)}
        for tensor in _tensors((args, kwargs)):
            weight = self._weight(tensor)
            if weight is None:
                continue
            if id(weight) in results:
                self.viewed[weight] = None
            else:
                self._use(weight)
                self.trace.computed.add(weight)

    def _note_views(self) -> None:
        """At the end of a segment: weights of which a view is still there."""
        for weight in self.viewed:
            if _users(weight) > self.users[weight]:
                self.trace.looked_at.add(weight)
        self.viewed.clear()

    def finish(self) -> Trace:
        """The trace, once the forward has ended."""
        self._note_views()
        return self.trace

    def _use(self, weight: Weight) -> None:
        self.trace.segments[-1].weights[weight] = None

    def _computed(self, tensor: Tensor) -> Tensor:
        weight = self._weight(tensor)
        if weight is None:
            return tensor
        self._use(weight)
        self.trace.computed.add(weight)
        return self._on_device(weight, tensor)

    def _weight(self, tensor: Tensor) -> Weight | None:
        try:
            return self.weights.get(tensor.untyped_storage()._cdata)
        except (NotImplementedError, RuntimeError):  # A tensor without memory of its own: sparse, or a subclass.
            return None

    def _on_device(self, weight: Weight, tensor: Tensor) -> Tensor:
        if self.device.type == "cpu":
            return tensor
        if weight not in self.copies:
            assert weight.in_arena is not None
            self.copies[weight] = all_bytes(weight.in_arena).to(self.device).untyped_storage()
        copy = view_of(self.copies[weight], tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride())
        return copy.requires_grad_(tensor.requires_grad)  # In inference mode `matmul` comes here whole (see `clothed`).

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0


def _users(weight: Weight) -> int:
    """How many tensors look at the memory that a traced forward finds."""
    storage = weight.reachable_storage or weight.in_arena
    return torch._C._storage_Use_Count(storage._cdata) if storage is not None else 0


def _may_be_view(func: Any) -> bool:
    """Whether an operation may return its argument's memory without reading it."""
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that an operation writes to."""
    if not func._schema.is_mutable:
        return []
    found: list[Tensor] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += _tensors(args[position] if position < len(args) else kwargs.get(argument.name))
    return found
