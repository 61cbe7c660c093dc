"""Batches in nested containers: their samples, pieces of them, and the joining of results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from memlab._paging.torch_private import tree_flatten, tree_map_only, tree_unflatten


class Samples:
    """The inputs of a model: tensors in tuples, lists and dictionaries, whose first dimension is the batch.

    Lists and tuples of numbers or texts, and NumPy arrays, with an entry for each sample, are cut too. Tensors with another
    first dimension and other values belong to every sample.

    >>> samples = Samples({"tokens": torch.arange(6).reshape(3, 2), "scale": 0.5})
    >>> len(samples), samples.piece(range(1, 3))
    (3, {'tokens': tensor([[2, 3],
            [4, 5]]), 'scale': 0.5})
    """

    def __init__(self, values: Any) -> None:
        if isinstance(values, Mapping) and not isinstance(values, dict):
            values = dict(values)  # A tokenizer's mapping, which PyTorch takes for one value.
        _refuse_packed(values)
        tensors = [leaf for leaf in tree_flatten(values)[0] if isinstance(leaf, Tensor) and leaf.dim() > 0]
        if not tensors:
            raise ValueError("a batch needs a tensor whose first dimension is the samples")
        self._count: int = tensors[0].shape[0]
        self.leaves, self._form = tree_flatten(values, is_leaf=self._has_entries)

    def __len__(self) -> int:
        return self._count

    @property
    def form(self) -> str:
        """The shapes and types of a sample: equal for all batches of similar samples."""
        return str([(tuple(leaf.shape[1:]), leaf.dtype) for leaf in self.leaves if isinstance(leaf, Tensor)])

    def is_cut(self, leaf: Any) -> bool:
        """True if the leaf has a row for each sample."""
        if isinstance(leaf, Tensor) or _is_array(leaf):
            return len(leaf.shape) > 0 and leaf.shape[0] == self._count
        return self._has_entries(leaf)

    def _has_entries(self, value: Any) -> bool:
        """True for a list with a number, a text or another plain value for each sample."""
        return isinstance(value, (list, tuple)) and len(value) == self._count and all(map(_is_plain, value))

    def piece(self, rows: range, device: torch.device | None = None) -> Any:
        """Some samples, in the containers of the whole; on a device if one is given."""
        return self.filled(self.taken(rows, device))

    def taken(self, rows: range, device: torch.device | None = None) -> list[Any]:
        """The leaves of some samples."""
        return [self._taken(leaf, rows, device) for leaf in self.leaves]

    def leaves_of(self, piece: Any) -> list[Any]:
        """The leaves of a piece, in the order of those of the whole."""
        return self._form.flatten_up_to(piece)

    def filled(self, leaves: Sequence[Any]) -> Any:
        """Puts other values into the same containers."""
        return tree_unflatten(list(leaves), self._form)

    def _taken(self, leaf: Any, rows: range, device: torch.device | None) -> Any:
        if self.is_cut(leaf) and len(rows) < self._count:
            leaf = leaf[rows.start : rows.stop]
        if device is not None and isinstance(leaf, Tensor):
            leaf = leaf.to(device, non_blocking=True)
        return leaf


def _is_array(value: Any) -> bool:
    """True for NumPy arrays."""
    return type(value).__module__ == "numpy" and hasattr(value, "shape")


def _is_plain(value: Any) -> bool:
    """True for values in which PyTorch finds no tensor."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, complex, str, bytes)) or type(value).__module__ == "numpy"


def _refuse_packed(values: Any) -> None:
    for name, value in named_arguments(values):
        leaves, _ = tree_flatten(value, is_leaf=lambda one: isinstance(one, PackedSequence))
        if any(isinstance(leaf, PackedSequence) for leaf in leaves):
            raise ValueError(
                f"{name} is a PackedSequence, whose rows belong to several samples: pass the padded tensor and the lengths, "
                "and pack them in the model (torch.nn.utils.rnn.pack_padded_sequence)"
            )


def named_arguments(values: Any) -> list[tuple[str, Any]]:
    """The arguments of a model, with names for messages."""
    if isinstance(values, dict):
        return [(f"the argument {name!r}", value) for name, value in values.items()]
    if isinstance(values, (tuple, list)) and not isinstance(values, PackedSequence):
        return [(f"argument {index + 1}", value) for index, value in enumerate(values)]
    return [("the input", values)]


def is_stream(inputs: Any) -> bool:
    """True if the value gives the pieces of a batch one by one, rather than being the batch itself.

    >>> import torch
    >>> is_stream(iter([])), is_stream([torch.zeros(2)]), is_stream({"x": torch.zeros(2)})
    (True, False, False)
    """
    if not isinstance(inputs, Iterable) or isinstance(inputs, (Tensor, Mapping, str, bytes)):
        return False
    leaves, _ = tree_flatten(inputs)  # Contents of a container that PyTorch knows, such as a list; else the value itself.
    return len(leaves) == 1 and leaves[0] is inputs


def call(function: Any, values: Any) -> Any:
    """Calls a function with the entries of a tuple or list, the named entries of a dictionary, or a single value."""
    if isinstance(values, dict):
        return function(**values)
    if isinstance(values, (tuple, list)):
        return function(*values)
    return function(values)


def beside(outputs: Any, targets: Any) -> Any:
    """Moves targets to the device of the outputs."""
    device = next(leaf.device for leaf in tree_flatten(outputs)[0] if isinstance(leaf, Tensor))
    return tree_map_only(Tensor, lambda tensor: tensor.to(device), targets)


def joined(
    results: Sequence[Any], pieces: Sequence[range], places: Mapping[int, Tensor | None] = MappingProxyType({})
) -> Any:
    """Joins the results of pieces. `places`: values that are joined already, by leaf number.

    Raises:
        ValueError: a result has no row for each sample.
    """
    flat = [tree_flatten(result) for result in results]
    columns = zip(names_of(results[0]), *(leaves for leaves, _ in flat), strict=True)
    leaves = [_joined_leaf(name, parts, pieces, places.get(index)) for index, (name, *parts) in enumerate(columns)]
    return tree_unflatten(leaves, flat[0][1])


class Joining:
    """Joins the results of pieces as they arrive, without graphs, in memory that is allocated once.

    >>> joining = Joining(3)
    >>> for rows in (range(2), range(2, 3)):
    ...     joining.add({"squares": torch.tensor([float(row * row) for row in rows])}, rows)
    >>> joining.whole()
    {'squares': tensor([0., 1., 4.])}
    """

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._results: list[Any] = []
        self._pieces: list[range] = []
        # By leaf number; None: its results are not in one tensor.
        self._places: dict[int, Tensor | None] = {}

    def add(self, result: Any, rows: range) -> None:
        """Adds the result of some samples."""
        leaves, form = tree_flatten(result)
        kept = [self._kept(index, leaf, rows) for index, leaf in enumerate(leaves)]
        self._results.append(tree_unflatten(kept, form))
        self._pieces.append(rows)

    def whole(self) -> Any:
        """The joined result of all samples. Raises ValueError as `joined` does."""
        return joined(self._results, self._pieces, self._places)

    def _kept(self, index: int, leaf: Any, rows: range) -> Any:
        """The same value, copied into its place if it has one."""
        is_plain = type(leaf) is Tensor and leaf.layout is torch.strided and leaf.dim() > 0
        if index not in self._places:
            is_new = is_plain and leaf.shape[0] == len(rows) < self._samples
            self._places[index] = _like(leaf, self._samples) if is_new else None
        place = self._places[index]
        if place is None:
            return leaf
        part = place[rows.start : rows.stop]
        if not is_plain or (part.shape, part.dtype, part.device) != (leaf.shape, leaf.dtype, leaf.device):
            self._places[index] = None
            return leaf
        return part.copy_(leaf)


def _like(leaf: Tensor, samples: int) -> Tensor:
    """Memory for this number of samples, in the memory format that `torch.cat` would choose."""
    is_last = leaf.dim() == 4 and leaf.is_contiguous(memory_format=torch.channels_last) and not leaf.is_contiguous()
    order = torch.channels_last if is_last else torch.contiguous_format
    return torch.empty((samples, *leaf.shape[1:]), dtype=leaf.dtype, device=leaf.device, memory_format=order)


def _joined_leaf(name: str, parts: Sequence[Any], pieces: Sequence[range], place: Tensor | None) -> Any:
    first = parts[0]
    if not isinstance(first, Tensor):
        if type(first).__module__.partition(".")[0] in ("builtins", "torch"):
            return first
        raise ValueError(
            f"memlab cannot split the {type(first).__name__} that the model returns into samples"
            + (": call the model with use_cache=False" if "Cache" in type(first).__name__ else "")
        )
    wrong = [unjoinable(part, len(rows), name) for part, rows in zip(parts, pieces, strict=True)]
    for message in wrong:
        if message is not None:
            raise ValueError(message)
    if place is not None:
        return place
    return torch.cat([*parts]) if len(parts) > 1 else first


def names_of(outputs: Any) -> list[str]:
    """Names of the leaves of a model's outputs, for messages: each has the name of the entry that contains it."""
    several: Iterable[tuple[Any, Any]] = ()
    if isinstance(outputs, dict):
        several = outputs.items()
    elif isinstance(outputs, (tuple, list)):
        several = enumerate(outputs)
    named = [(f"output {name!r}", value) for name, value in several] or [("output", outputs)]
    return [name for name, value in named for _ in tree_flatten(value)[0]]


def unjoinable(result: Any, samples: int, name: str) -> str | None:
    """The reason why a model's result for some samples cannot be joined with others; None: it can."""
    if not isinstance(result, Tensor) or (result.dim() > 0 and result.shape[0] == samples):
        return None
    return (
        f"the model's {name} is a tensor of shape {tuple(result.shape)} for {samples} samples. Its first dimension must be "
        "the samples, so that memlab can join the results of micro-batches. If it is the model's own loss, return the "
        "outputs and compute the loss from them. If it is a parameter, such as a scale, leave it out of the outputs, and "
        "multiply within the model"
    )
