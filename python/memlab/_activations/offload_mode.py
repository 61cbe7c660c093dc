"""A block that offloads activations: its hooks, and the forward that runs in it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from memlab._activations.forward_histories import ForwardHistories
from memlab._activations.offloaded_forward import OffloadedForward
from memlab._paging.torch_private import OperationMode, backward_number, exclude_from_compile, tree_leaves


class OffloadMode(OperationMode):
    """Passes each operation, and each tensor that autograd saves, to an `OffloadedForward`."""

    #: Control flow such as torch.cond runs as without this mode.
    supports_higher_order_operators = True

    def __init__(self, device: torch.device, histories: ForwardHistories) -> None:
        super().__init__()
        self._device = device
        self._histories = histories
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)
        #: The running forward, once it has begun.
        self.forward: OffloadedForward | None = None

    @classmethod
    def is_infra_mode(cls) -> bool:
        """True, so that torch.compile compiles within this mode."""
        return True

    def __enter__(self) -> Any:
        self._hooks.__enter__()
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._hooks.__exit__(*exception)
        if self.forward is not None:
            self.forward.ended()
            self.forward = None

    def release_copied(self) -> None:
        """Frees all storages that are being copied to the host, as soon as the copies are complete."""
        if self.forward is not None:
            self.forward.release_copied()

    def _begun(self, signature: Any) -> OffloadedForward:
        self.forward = OffloadedForward(self._device, self._histories, signature)
        return self.forward

    def _pack(self, tensor: Tensor) -> Any:
        forward = self.forward or self._begun("saved" if tensor.is_nested else ("saved", tensor.shape))
        return forward.pack(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        forward = self.forward
        if backward_number() != -1:
            if forward is not None:
                forward.before(func, args, keywords)
            return func(*args, **keywords)
        if forward is None:
            leaves = tree_leaves((args, keywords))
            shapes = tuple(leaf.shape for leaf in leaves if isinstance(leaf, Tensor) and not leaf.is_nested)
            forward = self._begun((func, shapes))
        forward.before(func, args, keywords)
        profile = forward.profile
        if profile is None:
            results = func(*args, **keywords)
            forward.after(func, args, keywords, results)
            return results
        inputs, parameters, is_known = forward.inputs(args, keywords)
        began = profile.clock()
        results = func(*args, **keywords)
        ended = profile.clock()
        outputs = forward.after(func, args, keywords, results)
        profile.ran(inputs, parameters, outputs, is_known and forward.can_recompute(func, args), began, ended)
        for content in forward.overwritten():
            profile.overwritten(content)
        return results


def _unpack(saved: Any) -> Tensor:
    return saved if isinstance(saved, Tensor) else saved.unpack()


# These functions run within compiled code, and must not be compiled.
for _function in (OffloadMode._pack, _unpack):
    exclude_from_compile(_function, calls=True)
