"""``memlab.offload_activations``: tensors that autograd saves for backward wait in host memory, or are recomputed."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import torch

from memlab import _native
from memlab._activations.forward_histories import SignatureHistories
from memlab._activations.offload_mode import OffloadMode
from memlab._paging.torch_private import exclude_from_compile

__all__ = ["offload_activations"]


class offload_activations(contextlib.ContextDecorator):
    """Limits the GPU memory of tensors that autograd saves in this block to `budget`, until backward.

        with memlab.offload_activations(budget="8GiB"):
            loss = loss_fn(model(inputs), targets)
        loss.backward()

    The rest goes to host memory during the forward, and returns ahead of backward. Values that are cheaper to recompute than
    to copy are recomputed in backward, by the same operations. The second forward measures the time of each operation. From
    the third on, the schedule with the least time is used. Gradients equal those without this block, bit for bit.

    The block may contain all or part of a model, or decorate a function. Backward may run inside or outside. It works with
    torch.compile, autocast and checkpointing. Parameters, inputs and tensors below 1 MiB stay on the device.

    Args:
        budget: GPU memory for activations, in bytes or as ``"8GiB"``. The inputs and outputs of one operation, and tensors
            that always stay, come on top.
        recompute: False: only copy, never recompute.
        device: the device whose tensors are offloaded; None: the current GPU. ``"cpu"`` moves tensors of the CPU, for trying
            it without a GPU.

    Raises:
        ValueError: the budget is no size.
        RuntimeError: in backward, if a tensor that it needs was changed in place since.

    >>> import memlab, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512))
    >>> with memlab.offload_activations(budget="16MiB", device="cpu"):
    ...     loss = model(torch.randn(1024, 512)).square().mean()
    >>> loss.backward()
    """

    def __init__(self, budget: str | int, *, recompute: bool = True, device: torch.device | str | None = None) -> None:
        nbytes = _native.parse_size(budget) if isinstance(budget, str) else budget
        if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
            raise ValueError(f'budget={budget!r}: must be a whole number of bytes, or a size such as "8GiB"')
        self._budget = nbytes
        self._recompute = recompute
        if device is not None and torch.device(device).type not in ("cpu", "cuda"):
            raise ValueError(f'device={device!r}: must be a GPU of CUDA, or "cpu"')
        self._device = device
        # Separate for each thread: a decorated function may run in several.
        self._open = threading.local()

    def __enter__(self) -> None:
        device = _device(self._device)
        modes = self._open.__dict__.setdefault("modes", [])
        if device is None:
            modes.append(None)
            return
        mode = OffloadMode(device, SignatureHistories.of(device, self._budget, recompute=self._recompute))
        mode.__enter__()
        modes.append(mode)

    def __exit__(self, *exception: Any) -> None:
        mode = self._open.modes.pop()
        if mode is not None:
            mode.__exit__(*exception)


def _device(asked: torch.device | str | None) -> torch.device | None:
    """The device whose tensors are moved; None without a GPU, or while its work is captured into a graph."""
    if asked is None and not torch.cuda.is_available():
        return None
    device = torch.device("cuda" if asked is None else asked)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return None if device.type == "cuda" and torch.cuda.is_current_stream_capturing() else device


# Within code for torch.compile, the block is not compiled, and breaks the graph.
for _method in (offload_activations.__init__, offload_activations.__enter__, offload_activations.__exit__):
    exclude_from_compile(_method, calls=True)
