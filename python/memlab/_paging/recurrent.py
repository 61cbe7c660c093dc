"""nn.LSTM, nn.GRU and nn.RNN as cuDNN takes them: all weights of one in one piece of memory, in an order of its own.

PyTorch lays them out so when such a module is moved to a GPU. Weights that lie elsewhere it would copy together before
every call, and warn of it; and rounding may differ by what kernels that leads to.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def weights_of(module: nn.RNNBase) -> list[Tensor]:
    """Its weights in PyTorch's order, none if they are not plain parameters (of a parametrization, pruned)."""
    weights = [module._parameters.get(name) for name in module._flat_weights_names]
    found = [weight for weight in weights if weight is not None and weight.is_contiguous()]
    each_once = len({id(weight) for weight in found}) == len(weights)
    return found if each_once and len({weight.dtype for weight in found}) == 1 else []


def cudnn_layout(module: nn.RNNBase, device: torch.device) -> tuple[list[int], int] | None:
    """Where on a GPU each of `weights_of` begins, in bytes, and how many bytes they take in all; None if it is not cuDNN's.

    It is read off a module of the same sizes, which takes twice their memory on the device for a moment.
    """
    weights = weights_of(module)
    if device.type != "cuda" or not weights:
        return None
    with torch.no_grad(), torch.inference_mode(False):
        sizes = (module.mode, module.input_size, module.hidden_size, module.num_layers, module.bias)
        ways = {"bidirectional": module.bidirectional, "proj_size": module.proj_size, "dtype": weights[0].dtype}
        try:
            twin = nn.RNNBase(*sizes, device="meta", **ways).to_empty(device=device)
        except torch.OutOfMemoryError:
            return None
        there = weights_of(twin)
        storages = {weight.untyped_storage()._cdata for weight in there}
        if len(storages) != 1 or [weight.shape for weight in there] != [weight.shape for weight in weights]:
            return None
        storage = there[0].untyped_storage()
        return [weight.data_ptr() - storage.data_ptr() for weight in there], storage.nbytes()
