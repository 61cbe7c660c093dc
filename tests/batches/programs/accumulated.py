"""Trains a language model in micro-batches: `accumulated.py WAY --batch N…`. Prints for each batch size PyTorch's peak
allocation in a step after the first two, and the bytes of the outputs. Fails if memory ran out."""

import argparse
import json
import sys
from pathlib import Path

import memlab
import torch
from torch import nn
from torch.nn import functional

sys.path.append(str(Path(__file__).resolve().parents[2] / "know" / "programs"))
from planned import CONTEXT, WORDS, Block

parser = argparse.ArgumentParser()
parser.add_argument("way", choices=["micro-batches", "replay"])
parser.add_argument("--batch", type=int, nargs="+")
parser.add_argument("--micro-batch", type=int)
parser.add_argument("--memory", default="auto")
arguments = parser.parse_args()


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 256)
        self.blocks = nn.Sequential(*(Block(eager=False) for _ in range(4)))

    def forward(self, tokens):
        return self.blocks(self.words(tokens)).mean(1)


def contrastive(outputs):
    return functional.cross_entropy(outputs @ outputs.roll(1, 0).T, torch.arange(len(outputs), device=outputs.device))


def main():
    peaks = []
    for batch in arguments.batch:
        model = Encoder().cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        tokens = torch.randint(0, WORDS, (batch, CONTEXT))
        targets = torch.zeros(batch, 256)
        for step in range(4):
            if step == 2:
                torch.cuda.reset_peak_memory_stats()
            optimizer.zero_grad()
            is_mean = arguments.way == "micro-batches"
            memlab.accumulate(
                model,
                tokens,
                nn.MSELoss() if is_mean else contrastive,
                targets=targets if is_mean else None,
                micro_batch=arguments.micro_batch,
                memory=arguments.memory,
            )
            optimizer.step()
        assert torch.cuda.memory_stats()["num_ooms"] == 0
        peaks.append([torch.cuda.max_memory_allocated(), targets.nbytes])
        del model, optimizer
    print(json.dumps(peaks))


main()
