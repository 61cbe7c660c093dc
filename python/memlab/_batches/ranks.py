"""Batches over ranks, with DistributedDataParallel or `fully_shard`: gradients are averaged once, in the last piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

#: The message for loops that call backward themselves on several ranks.
WITHIN_A_BACKWARD = (
    "ranks cannot wait for each other within a backward: use memlab.accumulate. (With DistributedDataParallel, you can also "
    "pass model.module, and average the gradients.)"
)

# Minimum bytes of gradients averaged at a time: as in DistributedDataParallel.
_BUCKET = 25 << 20


class Ranks:
    """A model's ranks; one rank, if it is neither in DistributedDataParallel nor sharded."""

    def __init__(self, model: nn.Module) -> None:
        self._parallel = model if isinstance(model, DistributedDataParallel) else None
        self._model = model
        # (Detected by attributes: importing FSDPModule takes longer than a step.)
        self._sharded: list[Any] = [one for one in model.modules() if is_sharded(one)]

    @property
    def are_several(self) -> bool:
        """True if gradients are averaged over ranks."""
        return self._parallel is not None or self.are_in_step

    @property
    def are_in_step(self) -> bool:
        """True if each forward and backward waits for those of other ranks, which have shards of the parameters."""
        return bool(self._sharded)

    def model(self, is_last: bool = False) -> nn.Module:
        """The model for a piece. Only the last piece goes through the wrapper, whose backward averages all accumulated
        gradients. The gradients of shards stay whole until then."""
        self._set_sync(is_last)
        if self._parallel is None or is_last:
            return self._model
        inner: nn.Module = self._parallel.module
        return inner

    def apart(self) -> Ranks:
        """This rank alone, which waits for no other."""
        return Ranks(self.model())

    def finish(self) -> None:
        """Restores averaging in each backward, after the last piece or a failure."""
        self._set_sync(True)

    def _set_sync(self, is_wanted: bool) -> None:
        for module in self._sharded:
            module.set_requires_gradient_sync(is_wanted, recurse=False)
            module.set_is_last_backward(is_wanted)

    def _group(self) -> Any:
        if self._parallel is not None:
            return self._parallel.process_group
        mesh = next((one.device_mesh for one in self._model.parameters() if hasattr(one, "device_mesh")), None)
        if mesh is None or mesh.ndim > 1:
            raise RuntimeError(
                f"memlab supports models sharded by fully_shard over a mesh of one dimension; this model's mesh is {mesh}"
            )
        return mesh.get_group()

    def agreed(self, number: int, device: torch.device, *, most: bool) -> int:
        """The maximum or minimum of a number over the ranks. All ranks must call it."""
        value = torch.tensor(number, device=device)
        operation = torch.distributed.ReduceOp.MAX if most else torch.distributed.ReduceOp.MIN
        torch.distributed.all_reduce(value, operation, group=self._group())
        return int(value)

    def part_of_all(self, weight: Tensor | int, device: torch.device) -> Tensor | int:
        """The denominator D for pieces: the average D of the ranks, so that the average over ranks is the mean of all
        samples."""
        if not self.are_several:
            return weight
        total = torch.as_tensor(weight).to(device, torch.float64, copy=True)
        torch.distributed.all_reduce(total, group=self._group())
        return total / torch.distributed.get_world_size(self._group())

    def share_buffers(self) -> None:
        """Copies the first rank's buffers to all ranks, as a forward through the wrapper does. This and `average` are for
        batches where no piece goes through the wrapper."""
        if self._parallel is None or not self._parallel.broadcast_buffers:
            return
        group, ignored = self._parallel.process_group, self._parallel.parameters_to_ignore
        first = torch.distributed.get_global_rank(group, 0)
        for name, buffer in self._parallel.module.named_buffers():
            if name not in ignored:
                torch.distributed.broadcast(buffer.detach(), first, group=group)

    def average(self) -> None:
        """Averages gradients over the ranks. A missing gradient counts as 0 if another rank has one."""
        if self._parallel is None:
            return
        group, ignored = self._parallel.process_group, self._parallel.parameters_to_ignore
        named = self._parallel.module.named_parameters()
        parameters = [one for name, one in named if one.requires_grad and name not in ignored]
        if not parameters:
            return
        device, ranks = parameters[0].device, torch.distributed.get_world_size(group)
        has_one = torch.tensor([one.grad is not None for one in parameters], dtype=torch.int32, device=device)
        torch.distributed.all_reduce(has_one, torch.distributed.ReduceOp.MAX, group=group)
        gradients: dict[Any, list[Tensor]] = {}
        for parameter, is_wanted in zip(parameters, has_one.tolist(), strict=True):
            if is_wanted:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.setdefault((parameter.grad.dtype, parameter.grad.device), []).append(parameter.grad)
        for same in gradients.values():
            for bucket in _buckets(same):
                flat = torch.cat([one.reshape(-1) for one in bucket]).div_(ranks)
                torch.distributed.all_reduce(flat, group=group)
                for one, part in zip(bucket, flat.split([one.numel() for one in bucket]), strict=True):
                    one.copy_(part.view_as(one))


def is_sharded(module: nn.Module) -> bool:
    """True if `fully_shard` has sharded the module."""
    kind = type(module)
    return hasattr(kind, "set_requires_gradient_sync") and hasattr(kind, "set_is_last_backward")


def _buckets(gradients: list[Tensor]) -> Iterator[list[Tensor]]:
    """Groups of gradients that are averaged together, in this order."""
    bucket: list[Tensor] = []
    nbytes = 0
    for gradient in gradients:
        bucket.append(gradient)
        nbytes += gradient.nbytes
        if nbytes >= _BUCKET:
            yield bucket
            bucket, nbytes = [], 0
    if bucket:
        yield bucket
