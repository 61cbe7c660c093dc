"""Helpers for the tests of paging: small models, paged copies of them, and exact comparison."""

import copy

import memlab
import pytest
import torch
from paging.zoo import call
from torch import nn
from torch.utils._pytree import tree_flatten

WIDE = (256, 64)  # 64 KiB: the size of a unit in these tests.


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    torch.manual_seed(0)
    # Two test programs run at a time on a small machine: more threads would slow both.
    torch.set_num_threads(1)
    # Units of a few layers, as in large models.
    monkeypatch.setattr("memlab._paging.units.SMALL_UNIT", 64 << 10)
    monkeypatch.setattr("memlab._paging.units.SMALL_SHARED", 4 << 10)
    monkeypatch.setattr("memlab._paging.collect.SMALL_BUFFER", 64 << 10)
    # Units are copied in parts as their memory becomes free, like large units in large models.
    for module in ("planning", "device_pool"):
        monkeypatch.setattr(f"memlab._paging.{module}.LEAST_PIECE", 1 << 10)


def paged(model, **options):
    return memlab.page(model, device="cpu", **options)


def pair(model, **options):
    """A model and its paged copy."""
    return model.eval(), paged(copy.deepcopy(model).eval(), **{"budget": "min", "max_layer_size": 1} | options)


def behave_alike(twin, model, inputs):
    for one in inputs:
        assert same(call(model, one), call(twin, one))
    for (name, ours), theirs in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name


def between(model, inputs):
    """A budget halfway between the minimum of a model and its full size."""
    paged(model, budget="min")
    for one in inputs:
        call(model, one)
    return (memlab.plan_of(model).device_bytes + memlab.plan_of(model).host_bytes) // 2


def same(one, other):
    """Returns true if two results of any structure are bit-identical."""
    ours, shape = tree_flatten(one)
    theirs, other_shape = tree_flatten(other)
    assert shape == other_shape
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else type(a) is type(b)
    return True


def mlp(width=64, depth=6):
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(depth))).eval()


class LoRA(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / 8)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.a.t() @ self.b.t()


class Words(nn.Module):
    """A table whose rows are read in host memory: it has no place on the device."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(20_000, 64)
        self.layer = nn.Linear(64, 64)

    def forward(self, ids):
        return self.layer(self.table(ids))


class Bank(nn.Module):
    """A large buffer that some forwards write to and others replace."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.register_buffer("bank", torch.randn(WIDE))
        self.last = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))

    def forward(self, x, what):
        x = self.first(x)
        if what == "write":
            self.bank[: len(x)].copy_(x)
        if what == "assign":
            self.bank = self.bank * 0.5 + 1
        return self.last(x + self.bank[: len(x)] + self.bank.mean(0))
