"""Forwards that write to weights and buffers, and views of weights that outlive their layer."""

import pytest
import torch
from paging.small import WIDE, Bank, behave_alike, paged, pair, same, small_units  # noqa: F401 (a fixture)
from paging.zoo import call
from torch import nn


@pytest.mark.parametrize("first", ["read", "write", "assign"])
@pytest.mark.parametrize("budget", ["min", "1GiB"])
def test_buffers_that_forwards_change(budget, first):
    # GIVEN forwards that write to a buffer, replace it, or only read it, in any order
    twin, model = pair(Bank(), budget=budget)
    order = [first, "read", "read", "read", "write", "read", "assign", "read", "write", "write", "assign", "assign", "read"]
    behave_alike(twin, model, [(torch.randn(3, 64), what) for what in order])


class OneMemory(nn.Module):
    """Several tensors in one memory, one of them written."""

    def __init__(self):
        super().__init__()
        both = torch.randn(2, 256, 64)
        self.register_buffer("whole", both)
        self.register_buffer("part", both[0])
        self.register_buffer("small", both[1, 0])
        self.layer = nn.Linear(64, 64)
        self.other = nn.Linear(64, 64)

    def forward(self, x):
        self.whole.add_(1)
        return self.other(self.layer(x) + self.part[: len(x)] + self.small)


def test_tensors_of_one_memory():
    twin = OneMemory().eval()
    model = OneMemory().eval()
    model.load_state_dict(twin.state_dict())
    paged(model, budget="min", max_layer_size=1)
    behave_alike(twin, model, [(torch.randn(3, 64),) for _ in range(5)])


class ReturnsViews(nn.Module):
    """Returns or stores views of weights beyond the call of their layer."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.randn(WIDE))
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(5))
        self.memo = None

    def forward(self, x, way):
        if way == "remember" and self.memo is None:
            self.memo = self.layers[1].weight.t()
        here = self.positions[: len(x)]
        x = x + here
        for layer in self.layers:
            x = layer(x)
        if way == "late":
            x = x * here
        if way == "remember":
            x = x @ self.memo
        return x, self.positions[:2]


@pytest.mark.parametrize("first", ["plain", "late"])
def test_views_that_outlive_their_layer(first):
    # GIVEN a model that returns a view of a weight, and uses others long after
    twin, model = pair(ReturnsViews())
    results = []
    for way in [first, "plain", "plain", "late", "plain", "remember", "plain", "remember", "late"]:
        x = torch.randn(3, 64)
        try:
            ours = call(model, (x, way))
        except RuntimeError as refused:
            # THEN a forward with an unexpected use raises an error, and the next one is right
            assert "run this one again" in str(refused)
            model.memo = None
            ours = call(model, (x, way))
        theirs = call(twin, (x, way))
        results.append((ours, theirs))
        # AND results stay valid, whatever is loaded later
        for one, other in results:
            assert same(one, other), way


class ReturnsWeight(nn.Module):
    """A layer that returns its weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64))

    def forward(self):
        return self.weight


class UsesReturnedWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = ReturnsWeight()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(5))

    def forward(self, x):
        weight = self.layer()
        x = x @ weight
        for layer in self.layers:
            x = layer(x)
        return x, weight


def test_a_returned_weight():
    # GIVEN a layer that returns its weight, which its caller keeps in a variable and returns at the end
    twin, model = pair(UsesReturnedWeight())
    results = []
    for _ in range(8):
        x = torch.randn(3, 64)
        results.append((call(model, (x,)), call(twin, (x,))))
        for ours, theirs in results:
            assert same(ours, theirs)
    # AND tensors that a failed forward held do not become resident
    resident = model.memlab.resident_bytes
    model.layers[2].register_forward_hook(lambda module, args, out: 1 / 0)
    for _ in range(4):
        with pytest.raises(ZeroDivisionError):
            call(model, (x,))
    assert model.memlab.resident_bytes == resident


def test_views_that_leave_no_room():
    # GIVEN results that are views of all weights in turn, under a budget with room for few of them
    class All(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

        def forward(self, x, which):
            looked_at = None
            for index, layer in enumerate(self.layers):
                x = layer(x)
                if index == which:
                    looked_at = layer.weight[:3]
            return x, looked_at

    twin, model = pair(All(), budget="60KiB")
    results = []
    for which in [9, 9, 9, 0, 1, 2, 3, 4, 5, 9, 5, 3]:
        x = torch.randn(3, 64)
        for _ in range(3):
            try:
                results.append((call(model, (x, which)), call(twin, (x, which))))
                break
            except RuntimeError as refused:
                assert "run this one again" in str(refused)
        # THEN all of them stay valid
        for ours, theirs in results:
            assert same(ours, theirs)
