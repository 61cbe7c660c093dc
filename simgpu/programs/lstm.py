"""Trains recurrent networks through cuDNN, which determines the layout of the weights."""

import torch
from torch import nn

CASES = [
    (nn.LSTM, {}),
    (nn.LSTM, {"bidirectional": True, "dropout": 0.2}),
    (nn.LSTM, {"proj_size": 16}),
    (nn.LSTM, {"bias": False}),
    (nn.GRU, {}),
    (nn.RNN, {}),
]

for kind, options in CASES:
    model = kind(32, 64, 2, batch_first=True, **options)
    weights = [p.detach().clone() for p in model.parameters()]
    # WHEN the weights move to the GPU, where they become one flat buffer
    model = model.cuda()
    # THEN their values are unchanged
    for before, after in zip(weights, model.parameters(), strict=True):
        assert torch.equal(before, after.cpu()), (kind, options)
    assert len({p.untyped_storage().data_ptr() for p in model.parameters()}) == 1, (kind, options)
    # AND the model trains
    for _ in range(2):
        y, _ = model(torch.randn(4, 10, 32, device="cuda"))
        y.sum().backward()
    assert model.weight_ih_l0.grad.shape == model.weight_ih_l0.shape
print("ok")
