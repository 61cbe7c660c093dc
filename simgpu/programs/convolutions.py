"""Checks that the workspaces of convolutions are those that the installed cuDNN plans for the card."""

from importlib.metadata import version

import torch
from torch import nn

MiB = 2**20
# The version of the package: torch.backends.cudnn.version() returns simgpu's.
INSTALLED = tuple(map(int, version(f"nvidia-cudnn-cu{torch.version.cuda.split('.')[0]}").split(".")[:2]))


def taken(count, inner, outer, size, filter, format=torch.contiguous_format, dtype=torch.float32, make=nn.Conv2d):
    """Temporary bytes of forward and of backward, without results and gradients."""
    layer = make(inner, outer, filter, padding=filter // 2, bias=False).to("cuda", dtype, memory_format=format)
    sizes = [size] * (layer.weight.dim() - 2)
    images = torch.randn(count, inner, *sizes, device="cuda", dtype=dtype).to(memory_format=format).requires_grad_()
    torch.cuda.reset_peak_memory_stats()
    out = layer(images)
    forward = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    gradient = torch.ones_like(out)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.max_memory_allocated()
    out.backward(gradient)
    gradients = (images.nbytes + 511) // 512 * 512 + (layer.weight.nbytes + 511) // 512 * 512
    return forward, torch.cuda.max_memory_allocated() - before - gradients


if INSTALLED >= (9, 8):
    # Kernels that rearrange the images compute convolutions of channels-first fp32 images: larger batches need larger
    # workspaces.
    small, large = taken(4, 64, 64, 56, 3)[0], taken(32, 64, 64, 56, 3)[0]
    assert 2 * MiB < small < large / 3, (small, large)
    # With a 1x1 filter, cuBLASLt computes them as a matrix multiplication, without workspace. (Observed on an H100.)
    # The filter's gradient is summed over the images.
    forward, backward = taken(32, 128, 512, 28, 1)
    assert forward == 0, forward
    assert backward == 32 * 128 * 512 * 4, backward
    # For float16 volumes, cuDNN rearranges both for the filter's gradient, to at least 8 channels. (Observed on an
    # H100.)
    forward, backward = taken(6, 16, 3, 64, 1, dtype=torch.float16, make=nn.Conv3d)
    assert forward == 0, forward
    assert 6 * (16 + 8) * 64**3 * 2 < backward < 80 * MiB, backward
    # The same holds for float32 images with a narrow filter, but not for bfloat16 or for float32 volumes.
    assert taken(6, 16, 3, 256, 1)[1] > 6 * (16 + 3) * 256**2 * 4
    assert taken(6, 16, 3, 256, 1, dtype=torch.bfloat16)[1] <= 6 * 3 * 16 * 4 + 512
    assert taken(6, 16, 3, 64, 1, make=nn.Conv3d)[1] <= 6 * 3 * 16 * 4 + 512
    # The gradient of one image is also summed in float32, then rounded.
    assert taken(1, 64, 64, 56, 1, dtype=torch.float16)[1] == 64 * 64 * 4
    # With channels last, nothing has to be rearranged.
    assert taken(32, 64, 64, 56, 3, torch.channels_last, torch.bfloat16)[0] <= 512
else:
    # Older versions cannot plan without a device: every convolution has the same workspace.
    assert taken(4, 64, 64, 56, 3)[0] == taken(32, 64, 64, 56, 3)[0] == MiB
print("ok")
