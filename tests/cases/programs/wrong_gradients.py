"""Compares gradients of `memlab.accumulate` with the full batch's, for models whose rows are not independent samples.

Prints a JSON object that maps each case to its error, relative to the full batch's gradients, or to the refusal's error.
"""

import copy
import json

import memlab
import torch
import transformers
from torch import nn


def relative_error(ours, whole):
    pairs = [(one.grad, other.grad) for one, other in zip(ours.parameters(), whole.parameters(), strict=True)]
    return max(
        float((one - other).norm() / other.norm()) for one, other in pairs if other is not None and other.norm() > 1e-9
    )


class Lengths(nn.Module):
    """Sums a part of each row, whose length is a Python number."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 3)

    def forward(self, x, lengths):
        return torch.stack([self.head(row[:, :length].sum(1)) for row, length in zip(x, lengths, strict=True)])


class TimeFirst(nn.Module):
    """A recurrent layer whose first dimension is time, so that a row depends on earlier rows."""

    def __init__(self):
        super().__init__()
        self.recurrent, self.head = nn.LSTM(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.recurrent(x)[0])


def balanced_experts():
    """A mixture of experts whose loss has a small term over all tokens of a batch, with the library's defaults."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_experts": 8, "num_experts_per_tok": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    options = {"vocab_size": 97, "output_router_logits": True, "pad_token_id": 0}
    return transformers.OlmoeForCausalLM(transformers.OlmoeConfig(**sizes, **heads, **options))


def tried(model, inputs, criterion, targets, micro_batch):
    whole = copy.deepcopy(model)
    try:
        memlab.accumulate(model, inputs, criterion, targets=targets, micro_batch=micro_batch)
    except (RuntimeError, ValueError) as error:
        return str(error)
    outputs = whole(**inputs) if isinstance(inputs, dict) else whole(inputs)
    (criterion(outputs, targets) if criterion else outputs.loss).backward()
    return relative_error(model, whole)


torch.manual_seed(0)
rows, ids = torch.randn(13, 16, 9), torch.randint(1, 97, (12, 20))
lengths = {"x": rows, "lengths": [1 + index % 9 for index in range(13)]}
found = {
    "lengths as a list": tried(Lengths(), lengths, nn.CrossEntropyLoss(), torch.randint(3, (13,)), 4),
    "time first": tried(TimeFirst(), torch.randn(20, 5, 8), nn.MSELoss(), torch.randn(20, 5, 3), 4),
    "balanced experts": tried(balanced_experts(), {"input_ids": ids, "labels": ids}, None, None, 1),
}
print(json.dumps(found))
