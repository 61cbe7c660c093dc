"""The measured shapes: A to G of the reference, and smaller ones to try the benchmark.

Name a shape by its letter (`B`), with its tokens (`A:512`), and with its budget in percent (`D:4096:50`).
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import networks
import torch

# The longest sequence. Attention's share of the work stays small, and the same for every number of tokens.
CONTEXT = 2048


@dataclass(frozen=True)
class Shape:
    letter: str
    model: str
    tokens: int
    # The share of the weights that methods with a budget may keep on the GPU.
    percent: int | None = None
    # The number of forwards in the loop that the shape measures.
    forwards: int | None = None

    @property
    def name(self):
        more = f" {self.percent} %" if self.percent is not None else ""
        which = f"{self.model} " if self.letter == "E" else ""
        return f"{self.letter} {which}{self.tokens}{more}"


SHAPES = {
    "A": [Shape("A", "decoder", 1), Shape("A", "decoder", 512), Shape("A", "decoder", 4096)],
    "B": [Shape("B", "decoder", 12288)],
    "C": [Shape("C", "decoder", 24576)],
    "D": [Shape("D", "decoder", tokens, percent) for tokens in (2048, 4096, 8192) for percent in (25, 50, 75)],
    "E": [Shape("E", "dit", 1024), Shape("E", "resnet", 1), Shape("E", "resnet", 32)],
    "F": [Shape("F", "language", 4096)],
    "G": [Shape("G", "video", 32768, forwards=50)],
}

# (layers as in the reference, sizes), at full and small scale.
DECODER = {"full": (16, (8192, 28672, 64, 8)), "small": (6, (256, 512, 8, 2))}
LANGUAGE = {"full": (8, (4096, 14336, 32, 8, 128256)), "small": (4, (128, 256, 4, 2, 4096))}
DIT = {"full": (48, (1152, 4608, 16, False)), "small": (12, (64, 256, 4, False))}
VIDEO = {"full": (40, (5120, 13824, 40, True)), "small": (6, (128, 256, 4, True))}
RESNET = {"full": ((3, 4, 23, 3), 64), "small": ((1, 2, 3, 1), 8)}
TRANSFORMERS: dict[str, Any] = {
    "decoder": (DECODER, networks.Decoder),
    "language": (LANGUAGE, networks.Language),
    "dit": (DIT, networks.Diffusion),
    "video": (VIDEO, networks.Diffusion),
}


def parse(text):
    """The shapes in a list such as `A:512,B,D:4096:50`."""
    found = []
    for word in text.split(","):
        letter, *rest = word.strip().split(":")
        if letter not in SHAPES:
            raise ValueError(f"there is no shape {word!r}: {', '.join(SHAPES)} are there, and H, the zoo")
        shapes = SHAPES[letter]
        if rest:
            tokens = int(rest[0])
            shapes = [shape for shape in shapes if shape.tokens == tokens] or [replace(shapes[0], tokens=tokens)]
        if len(rest) > 1:
            shapes = [replace(shapes[0], percent=int(rest[1]))]
        found += shapes
    return found


def build(shape, scale, layers):
    """The model on the CPU. `layers` replaces the reference's number (not for a ResNet)."""
    if shape.model == "resnet":
        depths, width = RESNET[scale]
        return networks.build(partial(networks.ResNet, depths, width), torch.float32)
    sizes, kind = TRANSFORMERS[shape.model]
    default, numbers = sizes[scale]
    return networks.build(partial(kind, layers or default, *numbers), torch.bfloat16)


def blocks(model):
    """The large parts of a model, in the order of execution."""
    if isinstance(model, networks.ResNet):
        return [block for layer in (model.layer1, model.layer2, model.layer3, model.layer4) for block in layer]
    return list(model.blocks)


def inputs(shape, scale, device):
    """The arguments of the model: the same in every process."""
    generator = torch.Generator().manual_seed(shape.tokens)
    small = scale == "small"
    if shape.model == "resnet":
        images, side = (min(shape.tokens, 2), 64) if small else (shape.tokens, 512)
        return (torch.randn(images, 3, side, side, generator=generator).to(device),)
    tokens = max(1, shape.tokens // 64) if small else shape.tokens
    width = TRANSFORMERS[shape.model][0][scale][1][0]
    context = tokens if shape.model == "video" else min(tokens, 64 if small else CONTEXT)
    rows = max(1, tokens // context)
    if shape.model == "language":
        vocabulary = LANGUAGE[scale][1][-1]
        return (torch.randint(vocabulary, (rows, context), generator=generator).to(device),)
    x = torch.randn(rows, context, width, generator=generator).to(device, torch.bfloat16)
    if shape.model == "decoder":
        return (x,)
    time = torch.randn(rows, width, generator=generator).to(device, torch.bfloat16)
    text = torch.randn(rows, 8 if small else 512, width, generator=generator).to(device, torch.bfloat16)
    return (x, time, text)


def must_be_sent(shape, model, call):
    """Bytes of weights that a forward needs: all, except unread rows of an embedding."""
    total = networks.weight_bytes(model)
    if shape.model != "language":
        return total
    table = model.embedding.weight
    return total - table.nbytes + call[0].unique().numel() * table[0].nbytes


def budget(shape, model):
    """Bytes of GPU memory for weights: the shape's share, else room for two blocks and all weights outside of blocks."""
    total = networks.weight_bytes(model)
    if shape.percent is not None:
        return total * shape.percent // 100
    sizes = [networks.weight_bytes(block) for block in blocks(model)]
    return min(total, total - sum(sizes) + 2 * max(sizes))
