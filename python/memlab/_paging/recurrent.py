"""The weights of nn.LSTM, nn.GRU and nn.RNN in the layout that cuDNN reads: one piece of memory, in cuDNN's order.

PyTorch creates this layout when such a module moves to a GPU. Without it, PyTorch copies the weights together before every
call and warns, and kernels, and therefore the last bits of results, may differ.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from memlab._paging.torch_private import rnn_weights, storage_key


def weights_of(module: nn.RNNBase) -> list[Tensor]:
    """Returns its weights in PyTorch's order; none if they are not plain parameters (parametrized, pruned)."""
    weights = rnn_weights(module)
    found = [weight for weight in weights if weight is not None and weight.is_contiguous()]
    distinct = len({id(weight) for weight in found}) == len(weights)
    return found if distinct and len({weight.dtype for weight in found}) == 1 else []


def cudnn_layout(module: nn.RNNBase, device: torch.device) -> tuple[list[int], int] | None:
    """Returns the start of each of `weights_of` on a GPU, and the total bytes; None if PyTorch does not join them.

    Reads the layout from a module of the same sizes, which briefly takes twice their memory on the device.
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
