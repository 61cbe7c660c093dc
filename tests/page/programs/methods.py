"""Calls a method of a paged model that computes with the model's own parameters, on a GPU. Prints the results' devices."""

import json

import memlab
import torch
from torch import nn


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(16, 64)
        self.positions = nn.Parameter(torch.randn(4, 64))
        self.block = nn.Linear(64, 64)

    def encode_text(self, tokens):
        return self.block(self.tokens(tokens) + self.positions)

    def forward(self, tokens):
        return self.encode_text(tokens).sum(1)


model = memlab.page(Text(), budget="min", max_layer_size=1)
with torch.no_grad():
    results = [model.encode_text(torch.zeros(2, 4, dtype=torch.long)) for _ in range(5)]
print(json.dumps({"devices": sorted({str(result.device) for result in results}), "stage": model.memlab.stage}))
