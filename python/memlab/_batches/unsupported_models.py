"""Models for which no strategy computes the right gradients in pieces."""

from __future__ import annotations

from torch import nn

from memlab._batches.ranks import is_sharded
from memlab._paging.torch_private import has_accumulation_hook


def refuse_unsupported(model: nn.Module) -> None:
    """Raises RuntimeError for a model whose gradients would be wrong in any division into pieces."""
    # Compared by name: importing these classes takes longer than a step.
    kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    if "FullyShardedDataParallel" in kinds:
        raise RuntimeError(
            "FullyShardedDataParallel averages gradients in each backward, and would average those of micro-batches again: "
            "shard the model with torch.distributed.fsdp.fully_shard instead"
        )
    replicated = next(
        (
            type(one).__name__
            for one in model.modules()
            if hasattr(type(one), "set_requires_gradient_sync") and not is_sharded(one)
        ),
        None,
    )
    if replicated is not None:
        raise RuntimeError(
            f"the model is a {replicated}, whose ranks average gradients in each backward: use DistributedDataParallel, or "
            "torch.distributed.fsdp.fully_shard"
        )
    hooked = next((name for name, parameter in model.named_parameters() if has_accumulation_hook(parameter)), None)
    if hooked is not None:
        raise RuntimeError(
            f"{hooked} has a hook that runs when its gradient is complete (register_post_accumulate_grad_hook), as for an "
            "optimizer that steps within backward: it would run after each micro-batch. Step after the whole batch instead"
        )
