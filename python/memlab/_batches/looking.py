"""What a batch cannot be computed in pieces for: decided by looking at the model."""

from __future__ import annotations

from torch import nn

from memlab._paging.torch_private import BatchNorm, has_accumulation_hook


def why_not_in_pieces(model: nn.Module) -> str | None:
    """Why pieces of a batch would not add up to the whole, and what to do; None if nothing is known to be in the way."""
    for name, module in model.named_modules():
        if module.training and isinstance(module, BatchNorm):
            return (
                f"{name or 'the model'} is a {type(module).__name__} in training, which mixes all samples of a batch: "
                "pieces would have other statistics. Put such layers into eval mode to keep their statistics as they are, "
                "replace them (GroupNorm, LayerNorm), or allow statistics of each piece with exact=False"
            )
    return None


def refuse_unsupported(model: nn.Module) -> None:
    """Raises RuntimeError for what pieces cannot be right with, however they are computed."""
    # By their names: importing them takes longer than a step.
    kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    if kinds & {"FSDPModule", "FullyShardedDataParallel"}:
        raise RuntimeError(
            "FSDP gathers its shards in each forward, so all ranks would need equally many pieces, which memlab does not "
            "see to: use DistributedDataParallel, or micro-batches by hand"
        )
    hooked = next((name for name, parameter in model.named_parameters() if has_accumulation_hook(parameter)), None)
    if hooked is not None:
        raise RuntimeError(
            f"{hooked} has a hook that runs when its gradient is complete (register_post_accumulate_grad_hook), as where "
            "the optimizer steps within backward: it would run after each piece. Step after the whole batch instead"
        )
