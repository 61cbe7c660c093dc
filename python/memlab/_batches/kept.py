"""What a training keeps of its batches."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from memlab._paging.torch_private import tree_map_only

#: Nothing; the last batch; losses only, of all batches; everything, on the CPU.
POLICIES = ("none", "last", "metrics", "host")


class Kept:
    """Inputs, targets, outputs and losses of batches, by epoch and batch. Nothing in it has a graph.

    >>> kept = Kept("metrics")
    >>> kept.begin_epoch()
    >>> kept.add(inputs=[1], targets=[2], outputs=None, loss=0.5, samples=8)
    >>> kept.losses, kept.inputs
    ([[(0.5, 8)]], [[]])
    """

    def __init__(self, policy: str) -> None:
        if policy not in POLICIES:
            raise ValueError(f"keep={policy!r}: must be one of {', '.join(map(repr, POLICIES))}")
        self.policy = policy
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self.inputs: list[list[Any]] = []
        self.targets: list[list[Any]] = []
        self.outputs: list[list[Any]] = []
        self.losses: list[list[tuple[float, int]]] = []

    def begin_epoch(self) -> None:
        """What follows belongs to another epoch."""
        if self.policy in ("none", "last"):
            self.clear()
        for container in (self.inputs, self.targets, self.outputs, self.losses):
            container.append([])  # type: ignore[attr-defined]

    def add(self, *, inputs: Any, targets: Any, outputs: Any, loss: float, samples: int) -> None:
        """A batch that was trained on."""
        if self.policy == "none":
            return
        if not self.losses:
            self.begin_epoch()
        if self.policy == "last":
            for container in (self.inputs, self.targets, self.outputs, self.losses):
                container[-1].clear()  # type: ignore[attr-defined]
        self.losses[-1].append((loss, samples))
        if self.policy == "metrics":
            return
        for container, value in ((self.inputs, inputs), (self.targets, targets), (self.outputs, outputs)):
            container[-1].append(_on_host(value) if self.policy == "host" else _without_graph(value))


def _without_graph(value: Any) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor.detach(), value)


def _on_host(value: Any) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor.detach().cpu(), value)
