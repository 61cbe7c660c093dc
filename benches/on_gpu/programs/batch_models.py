"""Small models of many kinds, with inputs and losses, computed in micro-batches and as a whole."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import criteria
import torch
from lockstep import Residual
from torch import nn
from torch.nn import functional

SAMPLES, CLASSES, WORDS, LENGTH, WIDTH = criteria.BATCH, criteria.CLASSES, 50, 12, 32


@dataclass
class Case:
    """A model and a batch for it. Tensors are float32, with samples first."""

    name: str
    make: Callable[[], nn.Module]
    #: A tensor, or keyword arguments.
    inputs: Any
    #: Function of all outputs, and of all targets if any.
    criterion: Callable[..., torch.Tensor]
    #: None, a tensor, or several.
    targets: Any
    ways: tuple[str, ...]
    #: True if it draws random numbers.
    has_dropout: bool = False


class Dropout(nn.Module):
    """Draws the same numbers in each precision."""

    def forward(self, x):
        return x * (torch.rand(x.shape, device=x.device, dtype=torch.float32) >= 0.1) / 0.9 if self.training else x


class Block(nn.Module):
    def __init__(self, is_causal):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = Dropout() if is_causal else nn.Identity()
        self.is_causal = is_causal

    def forward(self, x):
        heads = self.qkv(self.before_attention(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = heads
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.is_causal)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.mlp(self.before_mlp(x)))


class GPT(nn.Module):
    def __init__(self, is_tied=False):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH) / 10)
        self.blocks = nn.Sequential(*(Block(is_causal=True) for _ in range(2)))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if is_tied:
            self.head.weight = self.words.weight

    def forward(self, tokens):
        return self.head(self.blocks(self.words(tokens) + self.places)).transpose(1, 2)


class ViT(nn.Module):
    def __init__(self, outputs=CLASSES):
        super().__init__()
        self.patches, self.places = nn.Conv2d(3, WIDTH, 4, 4), nn.Parameter(torch.randn(16, WIDTH) / 10)
        self.blocks, self.last = nn.Sequential(*(Block(is_causal=False) for _ in range(2))), nn.Linear(WIDTH, outputs)

    def forward(self, images):
        return self.last(self.blocks(self.patches(images).flatten(2).transpose(1, 2) + self.places).mean(1))


class LSTM(nn.Module):
    def __init__(self, outputs=CLASSES):
        super().__init__()
        self.words, self.lstm = nn.Embedding(WORDS, WIDTH), nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)
        self.last = nn.Linear(WIDTH, outputs)

    def forward(self, tokens):
        return self.last(self.lstm(self.words(tokens))[0][:, -1])


class TwoEncoders(nn.Module):
    """Maps pictures and texts to vectors, side by side."""

    def __init__(self):
        super().__init__()
        self.see, self.read = ViT(8), LSTM(8)

    def forward(self, images, tokens):
        return torch.cat([self.see(images), self.read(tokens)], 1)


def resnet():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True), Residual(16, 16, 1),
        Residual(16, 32, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, CLASSES),
    )  # fmt: skip


def discriminator():
    layers = nn.Conv2d(3, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, 2, 1), nn.LeakyReLU(0.2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 1))


def generator_through_discriminator():
    layers = nn.Linear(8, 512), nn.ReLU(), nn.Unflatten(1, (32, 4, 4)), nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU()
    generator = nn.Sequential(*layers, nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh())
    return nn.Sequential(generator, discriminator().requires_grad_(False))


def contrastive(outputs):
    first, second = (functional.normalize(part, dim=-1) for part in outputs.chunk(2, 1))
    return functional.cross_entropy(first @ second.T / 0.1, torch.arange(len(outputs), device=outputs.device))


def models():
    numbers = torch.Generator().manual_seed(1)
    images = torch.randn(SAMPLES, 3, 16, 16, generator=numbers)
    tokens = torch.randint(0, WORDS, (SAMPLES, LENGTH), generator=numbers)
    following = tokens.roll(-1, 1)
    following[: SAMPLES // 3] = -100
    values, noise = torch.randn(SAMPLES, CLASSES, generator=numbers), torch.randn(SAMPLES, 8, generator=numbers)
    real = (torch.arange(SAMPLES) % 2).float()[:, None]
    mean, words = nn.CrossEntropyLoss(), nn.CrossEntropyLoss()
    apart, loss, binary = ("micro-batches", "replay", "offload"), ("replay", "offload"), nn.BCEWithLogitsLoss()
    together = ("lockstep", "at once", "offload")
    make_mlp = lambda: criteria.model_for(CLASSES)  # noqa: E731
    return [
        Case("MLP", make_mlp, criteria.IMAGES.float(), nn.MSELoss(), values, apart),
        Case("ResNet, BatchNorm", resnet, images, mean, criteria.LABELS, together),
        Case("LSTM", LSTM, tokens, mean, criteria.LABELS, apart),
        Case("GPT, dropout", GPT, tokens, words, following, apart, has_dropout=True),
        Case("ViT", ViT, images, mean, criteria.LABELS, apart),
        Case("two encoders, contrastive", TwoEncoders, {"images": images, "tokens": tokens}, contrastive, None, loss),
        Case("GAN, discriminator", discriminator, images, binary, real, apart),
        Case("GAN, generator", generator_through_discriminator, noise, binary, torch.ones_like(real), apart),
        Case("GPT, tied weights", lambda: GPT(is_tied=True).eval(), tokens, words, following, apart),
    ]


def every_criterion():
    """Each of PyTorch's criteria over a small model, and over one with BatchNorm."""
    for name, (criterion, form, targets) in criteria.CRITERIA.items():
        for norm, ways in ((False, ("micro-batches", "replay", "offload")), (True, ("lockstep", "at once"))):

            def make(form=form, norm=norm):
                return criteria.Given(form, nn.BatchNorm1d(7) if norm else None)

            yield Case(name, make, criteria.IMAGES, criterion, targets, ways)


def cases():
    return itertools.chain(models(), every_criterion())
