"""The weights of nn.LSTM, nn.GRU and nn.RNN in the layout that cuDNN reads: one piece of memory, in cuDNN's order.

PyTorch lays them out so when such a module is moved to a GPU. Otherwise it copies them together before every call and warns,
and kernels, and so the last bits, may differ.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from memlab._paging.torch_private import rnn_weights, storage_key


def weights_of(module: nn.RNNBase) -> list[Tensor]:
    """Its weights in PyTorch's order; none if they are not plain parameters (parametrized, pruned)."""
    weights = rnn_weights(module)
    found = [weight for weight in weights if weight is not None and weight.is_contiguous()]
    distinct = len({id(weight) for weight in found}) == len(weights)
    return found if distinct and len({weight.dtype for weight in found}) == 1 else []


def cudnn_layout(module: nn.RNNBase, device: torch.device) -> tuple[list[int], int] | None:
    """Where each of `weights_of` begins on a GPU, in bytes, and bytes in all; None if PyTorch does not join them there.

    Read off a module of the same sizes, which takes twice their memory on the device for a moment.
    """
    weights = weights_of(module)
    if device.type != "cuda" or not weights:
        return None
    with torch.no_grad(), torch.inference_mode(False):
        sizes = (module.mode, module.input_size, module.hidden_size, module.num_layers, module.bias)
        options = {"bidirectional": module.bidirectional, "proj_size": module.proj_size, "dtype": weights[0].dtype}
        try:
            twin = nn.RNNBase(*sizes, device="meta", **options).to_empty(device=device)
        except torch.OutOfMemoryError:
            return None
        laid_out = weights_of(twin)
        storages = {storage_key(weight.untyped_storage()) for weight in laid_out}
        if len(storages) != 1 or [weight.shape for weight in laid_out] != [weight.shape for weight in weights]:
            return None
        storage = laid_out[0].untyped_storage()
        return [weight.data_ptr() - storage.data_ptr() for weight in laid_out], storage.nbytes()
