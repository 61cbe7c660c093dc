"""The measured models and their weights: the same bytes in every process, created fast and without a GPU.

A model is created on `meta`, so that only the fill touches its memory, on all cores.
"""

import torch
import torch.nn.functional as F
from torch import nn

# A prime, so that all rows of a matrix start differently.
NOISE = 4194301
SEED = 20261120


class Attention(nn.Module):
    def __init__(self, width, heads, groups, causal):
        super().__init__()
        self.heads, self.groups, self.causal = heads, groups, causal
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width // heads * groups, bias=False)
        self.value = nn.Linear(width, width // heads * groups, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def split(self, x, heads):
        batch, length, _ = x.shape
        return x.view(batch, length, heads, -1).transpose(1, 2)

    def forward(self, x, context=None):
        context = x if context is None else context
        query = self.split(self.query(x), self.heads)
        key, value = self.split(self.key(context), self.groups), self.split(self.value(context), self.groups)
        if self.groups != self.heads:
            key, value = (part.repeat_interleave(self.heads // self.groups, dim=1) for part in (key, value))
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.out(attended.transpose(1, 2).flatten(2))


class DecoderBlock(nn.Module):
    """A block of Llama, without rotary embeddings, which have no weights."""

    def __init__(self, width, inner, heads, groups):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads, groups, causal=True)
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """Blocks only: hidden states in, hidden states out."""

    def __init__(self, layers, width, inner, heads, groups):
        super().__init__()
        self.blocks = nn.ModuleList(DecoderBlock(width, inner, heads, groups) for _ in range(layers))
        self.norm = nn.RMSNorm(width)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Language(nn.Module):
    """A model with a large vocabulary: an embedding of which a forward reads few rows, and an untied head."""

    def __init__(self, layers, width, inner, heads, groups, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(DecoderBlock(width, inner, heads, groups) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, -64:])  # As for a prompt, which needs few logits.


class DiffusionBlock(nn.Module):
    """A block of a diffusion transformer, modulated by a linear layer as in DiT, or by a table as in Wan."""

    def __init__(self, width, inner, heads, cross):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = Attention(width, heads, heads, causal=False)
        self.cross = Attention(width, heads, heads, causal=False) if cross else None
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        if cross:
            self.table = nn.Parameter(torch.empty(1, 6 * width))  # A parameter of a module that has children.
        else:
            self.modulation = nn.Linear(width, 6 * width)

    def forward(self, x, time, text):
        steps = time.repeat(1, 6) + self.table if self.cross is not None else self.modulation(F.silu(time))
        shift1, scale1, gate1, shift2, scale2, gate2 = steps[:, None].chunk(6, dim=-1)
        x = x + gate1 * self.attention(self.norm1(x) * (1 + scale1) + shift1)
        if self.cross is not None:
            x = x + self.cross(x, text)
        y = self.norm2(x) * (1 + scale2) + shift2
        return x + gate2 * self.down(F.gelu(self.up(y), approximate="tanh"))


class Diffusion(nn.Module):
    def __init__(self, layers, width, inner, heads, cross):
        super().__init__()
        self.blocks = nn.ModuleList(DiffusionBlock(width, inner, heads, cross) for _ in range(layers))
        self.last = nn.Linear(width, width)

    def forward(self, x, time, text):
        for block in self.blocks:
            x = block(x, time, text)
        return self.last(x)


class Bottleneck(nn.Module):
    def __init__(self, channels, inner, stride):
        super().__init__()
        out = inner * 4
        self.conv1, self.bn1 = nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out)
        self.downsample = None
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """ResNet-101 if `depths` are 3, 4, 23, 3. Has torchvision's names, which some methods read."""

    def __init__(self, depths, width):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        channels = width
        for stage, depth in enumerate(depths):
            inner, blocks = width << stage, []
            for number in range(depth):
                blocks.append(Bottleneck(channels, inner, 2 if stage and not number else 1))
                channels = inner * 4
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, 1000)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)
        return self.fc(x.mean((2, 3)))


def noise(dtype, scale, made):
    if (dtype, scale) not in made:
        generator = torch.Generator().manual_seed(SEED)
        made[dtype, scale] = (torch.randn(NOISE, generator=generator) * scale).to(dtype)
    return made[dtype, scale]


def pour(tensor, source, start):
    """`source`, repeated, from `start` on."""
    flat, position = tensor.view(-1), 0
    start %= len(source)
    while position < len(flat):
        length = min(len(source) - start, len(flat) - position)
        flat[position : position + length].copy_(source[start : start + length])
        position, start = position + length, 0


@torch.no_grad()
def fill(model):
    """Gives a model on `meta` weights on the CPU, scaled so that activations stay in a dense range of numbers."""
    model.to_empty(device="cpu")
    made: dict = {}
    norms = (nn.RMSNorm, nn.LayerNorm, nn.BatchNorm2d)
    ones = {id(module.weight) for module in model.modules() if isinstance(module, norms)}
    tensors = [*model.named_parameters(), *model.named_buffers()]
    for number, (name, tensor) in enumerate(tensors):
        if not tensor.is_floating_point():
            tensor.zero_()
        elif tensor.ndim >= 2 and not name.endswith("table"):
            fan_in = tensor.shape[1] if "embedding" in name else tensor[0].numel()
            pour(tensor, noise(tensor.dtype, fan_in**-0.5, made), number * 1000003)
        else:
            pour(tensor, noise(tensor.dtype, 0.02, made), number * 1000003)
            if name.endswith("running_var") or id(tensor) in ones:
                tensor.add_(1)
    return model.eval()


def build(make, dtype):
    with torch.device("meta"):
        model = make()
    return fill(model.to(dtype))


def weight_bytes(module):
    """Bytes of the storages of a module's parameters and buffers, each counted once."""
    storages = {}
    for tensor in (*module.parameters(), *module.buffers()):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(storages.values())
