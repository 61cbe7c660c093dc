"""A block that offloads activations: its hooks, and the forward that runs in it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from memlab._activations.forward_histories import ForwardHistories
from memlab._activations.offloaded_forward import OffloadedForward
from memlab._activations.operations import tensors_in, traits_of
from memlab._activations.storage_contents import KeptTensor
from memlab._paging.torch_private import (
    OperationMode,
    backward_number,
    base_of,
    exclude_from_compile,
    open_modes,
    without_graph,
)


class OffloadMode(OperationMode):
    """Passes each operation, and each tensor that autograd saves, to an `OffloadedForward`.

    Seeing each operation takes the host's time. After a forward whose tensors all fit, the next one begins with the hooks
    alone, and the mode opens when autograd saves something else or more.
    """

    #: Control flow such as torch.cond runs as without this mode.
    supports_higher_order_operators = True

    def __init__(self, device: torch.device, histories: ForwardHistories) -> None:
        super().__init__()
        self._device = device
        self._histories = histories
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)
        #: The running forward, once it has begun.
        self.forward: OffloadedForward | None = None
        self._is_open = False
        # Number of open modes around this one.
        self._modes = 0
        self._resident: dict[Any, int] | None = None
        self._first_saved: Any = None
        self._saved_nbytes = 0

    @classmethod
    def is_infra_mode(cls) -> bool:
        """True, so that torch.compile compiles within this mode."""
        return True

    def __enter__(self) -> Any:
        self._hooks.__enter__()
        self._modes = open_modes()
        self._resident = self._histories.resident
        if self._resident is None:
            self._open()
        return self

    def _open(self) -> None:
        self._is_open = True
        super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        if self._is_open:
            super().__exit__(*exception)
        self._hooks.__exit__(*exception)
        has_forward = self.forward is not None
        is_resident = not self._is_open and self._is_as_expected()
        if self.forward is not None:
            is_resident = self.forward.ended()
            self.forward = None
        if self._first_saved is not None or has_forward:
            self._histories.closed(self._first_saved, self._saved_nbytes if is_resident else None)

    def release_copied(self) -> None:
        """Frees all storages that are being copied to the host, as soon as the copies are complete."""
        if self.forward is not None:
            self.forward.release_copied()

    def _begun(self, signature: Any, kept_nbytes: int = 0) -> OffloadedForward:
        self.forward = OffloadedForward(self._device, self._histories, signature, kept_nbytes)
        return self.forward

    def _pack(self, tensor: Tensor) -> Any:
        forward = self.forward
        is_backward = backward_number() != -1
        kept_nbytes = self._saved_nbytes
        if not is_backward and (forward is None or forward.schedule.keeps_all):
            self._count(tensor)
        if not self._is_open:
            # Backward restores the modes with which it began, after each of its operations.
            if is_backward or self._is_as_expected() or open_modes() != self._modes:
                return KeptTensor(without_graph(tensor))
            self._open()
        if forward is None:
            forward = self._begun("saved" if tensor.is_nested else ("saved", tensor.shape), kept_nbytes)
        return forward.pack(tensor)

    def _count(self, tensor: Tensor) -> None:
        if self._first_saved is None:
            self._first_saved = (tensor.dtype, None if tensor.is_nested else tensor.shape)
        if type(tensor) is Tensor and not tensor.is_nested and not isinstance(base_of(tensor), nn.Parameter):
            self._saved_nbytes += tensor.numel() * tensor.element_size()

    def _is_as_expected(self) -> bool:
        """True as long as autograd saves no more than in an earlier forward that kept all of it."""
        return self._resident is not None and self._saved_nbytes <= self._resident.get(self._first_saved, -1)

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
            shapes = tuple(tensor.shape for tensor in tensors_in(args, keywords) if not tensor.is_nested)
            forward = self._begun((func, shapes))
        if forward.passes(func):
            return func(*args, **keywords)
        forward.before(func, args, keywords)
        profile = forward.profile
        if profile is None:
            results = func(*args, **keywords)
            forward.after(func, args, keywords, results)
            return results
        inputs, parameters, is_known = forward.inputs(args, keywords)
        # Views take no time on the device.
        is_timed = traits_of(func).makes_memory and profile.is_timing()
        began = profile.begin() if is_timed else 0
        results = func(*args, **keywords)
        ended = profile.clock() if is_timed else 0
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
