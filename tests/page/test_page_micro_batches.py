"""Batches that are split for the blocks of a paged model."""

import pytest
import torch
from paging.small import paged, same, small_units  # noqa: F401 (a fixture)
from paging.zoo import build, call
from torch import nn


def test_micro_batches():
    # GIVEN a model of blocks, and a batch that is split for them
    for name, batch in (("encoder", (6, 9, 64)), ("resnet101", (6, 3, 64, 64))):
        twin, model = build(name), build(name)
        model.load_state_dict(twin.state_dict())
        paged(model, micro_batch=2)
        for _ in range(4):
            x = torch.randn(batch)
            # THEN the results equal those of the full batch, as far as kernels compute the same for other shapes
            torch.testing.assert_close(call(model, (x,)), call(twin, (x,)))


class Rows(nn.Module):
    """A table with one row for each sample of the batch."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(RowsBlock() for _ in range(2))

    def forward(self, x, table):
        for block in self.blocks:
            x = block(x, table)
        return x


class RowsBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x, table):
        return self.layer(x) + table.sum(0)


def test_invalid_micro_batches_are_refused():
    # GIVEN an argument with the batch's size that is not a batch
    model = paged(Rows().eval(), micro_batch=2)
    with pytest.raises(ValueError, match="RowsBlock does not give the same"):
        call(model, (torch.randn(4, 64), torch.randn(4, 64)))
    # AND normalization over the batch
    model = paged(nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), nn.Conv2d(8, 8, 3)), micro_batch=2)
    with pytest.raises(RuntimeError, match="BatchNorm in training"):
        call(model, (torch.randn(4, 3, 8, 8),))
