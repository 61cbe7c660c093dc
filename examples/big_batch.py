"""Trains two encoders to match titles with pictures, with a loss that compares every pair of a large batch:

    python examples/big_batch.py
    python examples/big_batch.py --batch 4096 --memory 2GiB

Pictures and titles are generated from a shared hidden subject. With a GPU, pieces are as large as the memory allows. Without
one, they have 64 samples. In both cases, loss and gradients are those of the whole batch.
"""

import argparse
import time

import memlab
import torch
import torch.nn.functional as F
from torch import nn

SUBJECTS, WORDS, TITLE, PIXELS = 200, 500, 12, 32


class Encoders(nn.Module):
    """Encoders of pictures and titles as vectors."""

    def __init__(self, width=128, depth=4):
        super().__init__()
        layers = [nn.Conv2d(3, width, 4, 4)]
        for _ in range(depth):
            layers += [nn.GroupNorm(8, width), nn.GELU(), nn.Conv2d(width, width, 3, padding=1)]
        self.pictures = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.words = nn.Embedding(WORDS, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.titles = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)

    def forward(self, pictures, titles):
        return self.pictures(pictures), self.titles(self.words(titles)).mean(1)


def contrast(outputs):
    """Returns the contrastive loss of each picture against all titles, and of each title against all pictures."""
    pictures, titles = (F.normalize(vectors.float(), dim=-1) for vectors in outputs)
    scores = pictures @ titles.T / 0.07
    pairs = torch.arange(len(scores), device=scores.device)
    return (F.cross_entropy(scores, pairs) + F.cross_entropy(scores.T, pairs)) / 2


def samples(batch, generator):
    """Returns pictures whose colours, and titles whose words, depend on a subject."""
    subjects = torch.randint(0, SUBJECTS, (batch,), generator=generator)
    colours = torch.randn(SUBJECTS, 3, 4, 4, generator=torch.Generator().manual_seed(0))[subjects]
    pictures = F.interpolate(colours, PIXELS) + 0.5 * torch.randn(batch, 3, PIXELS, PIXELS, generator=generator)
    vocabulary = torch.randint(0, WORDS, (SUBJECTS, TITLE), generator=torch.Generator().manual_seed(1))[subjects]
    noise = torch.randint(0, WORDS, (batch, TITLE), generator=generator)
    titles = vocabulary.where(torch.rand(batch, TITLE, generator=generator) < 0.7, noise)
    return pictures, titles


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--memory", default="auto", help="how much GPU memory may be allocated, as 2GiB")
    arguments = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = Encoders().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(2)
    for step in range(arguments.steps):
        begin = time.perf_counter()
        loss = memlab.accumulate(
            model,
            samples(arguments.batch, generator),
            contrast,
            micro_batch=None if device == "cuda" else 64,
            memory=arguments.memory,
        )
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.3f}, {arguments.batch / (time.perf_counter() - begin):,.0f} samples/s")
    if device == "cuda":
        print(f"allocated at most: {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
