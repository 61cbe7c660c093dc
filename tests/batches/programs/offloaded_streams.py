"""Runs a backward that reads saved tensors on another GPU stream. Prints how often memory was marked as in use on that
stream and on the default stream."""

import memlab
import torch
from torch import Tensor


class Elsewhere(torch.autograd.Function):
    """The square of a tensor, whose backward runs on a separate stream."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        with torch.cuda.stream(stream):
            stream.wait_stream(torch.cuda.default_stream())
            (x,) = ctx.saved_tensors
            result = 2 * x * gradient
        torch.cuda.current_stream().wait_stream(stream)
        return result


stream = torch.cuda.Stream()
marked = []
record_stream = Tensor.record_stream


def watched(tensor, on):
    assert tensor.untyped_storage().nbytes() == 4 << 20
    marked.append(on)
    return record_stream(tensor, on)


Tensor.record_stream = watched
weights = [torch.ones(1 << 20, device="cuda", requires_grad=True) for _ in range(4)]
for _ in range(5):
    with memlab.offload_activations("4MiB", recompute=False):
        x = torch.ones(1 << 20, device="cuda")
        for weight in weights:
            x = Elsewhere.apply(x * weight)
        loss = x.sum()
    loss.backward()
torch.cuda.synchronize()
print(marked.count(stream), marked.count(torch.cuda.default_stream()))
