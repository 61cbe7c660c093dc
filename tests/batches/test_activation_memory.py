"""offload_activations with memory that is shared, reused, written to, or freed."""

import contextlib
import copy

import pytest
import torch
from offloaded import STEPS, WAYS, around_forwards, check, numbers, own_loss, same, squares, state
from torch import nn
from torch.nn import functional

block = pytest.fixture(params=WAYS)(around_forwards)


class Doubled(torch.autograd.Function):
    """Saves inputs and outputs; a kernel that PyTorch does not track writes them."""

    @staticmethod
    def forward(ctx, x, weight):
        scratch = x.mm(weight)
        out = scratch.clone()
        out.numpy()[:] *= 2
        ctx.save_for_backward(x, weight, out)
        return out

    @staticmethod
    def backward(ctx, gradient):
        x, weight, out = ctx.saved_tensors
        assert torch.equal(out, 2 * x.mm(weight))
        return (2 * gradient * out).mm(weight.T), x.T.mm(2 * gradient * out)


def sharing(x):
    both = x @ x.T
    left, right = both[:, :40], both[:, 8:]
    return (left.exp() * right.sin()).sum() + (both.T.tanh() * both).sum() + both.diagonal().exp().sum()


def expanded(x):
    row = x.sin().sum(1, keepdim=True).expand(-1, 64)
    return (row.exp() * row).sum() + torch.einsum("ij,kj->ik", row, x.cos().repeat(1, 2)).sum()


def reusing(x):
    for index in range(12):
        x = (x.clone() if index % 3 else x.sigmoid()).mul(1.01).exp().log1p()
        del_me = torch.empty_like(x).fill_(index)  # Reuses the block freed last.
        x = x + del_me.sum() * 1e-6
    return x.sum()


def complex_numbers(x):
    z = torch.complex(x, x.roll(1, 0)).exp()
    product = (z @ z.conj().T.exp()) * z.mm(z.T.conj()).conj()
    return torch.view_as_real(product).square().sum() * 1e-9 + product.imag.sum() * 1e-9


def sparse(x):
    matrix = (x.relu() + 0.1).to_sparse()
    return torch.sparse.mm(matrix * 2, x.exp().T.contiguous()).sum()


def empty(x):
    return torch.cat([x[:0].exp(), x.sin()]).exp().sum() + (x[:, :0] @ x[:, :0].T).exp().sum()


def written_before_it_is_saved(x):
    y = x.sin() * 2
    z = y + 1  # Recomputed from y, which autograd does not need.
    y.add_(1)
    small = torch.ones(1)
    w = z * 3 + small  # ... and from this.
    small.add_(1)
    return z.exp().sum() + w.exp().mean() + y.tanh_().sum()


def written_through_data(x):
    y = x * 2 + 1
    z = y + 3
    y.data.mul_(0.5)
    return z.exp().mean() + y.cos().sum()


BUFFER = numbers(400, 32, seed=9)


def of_large_memory(x):
    return (BUFFER[5:53] * x.exp()).sum() + (BUFFER[7] * x.sin()).tanh().sum()


def in_place_of_other_types_and_strides(x):
    y = (x.T * 2).half().T.contiguous().t() * 1
    y.mul_(x.T.float().contiguous())
    z = (x[:32].T[:32] + 1).t().clone(memory_format=torch.preserve_format)
    z.add_(x[:32]).sigmoid_()
    w = x.float() * 1
    w.sub_(x[:1]).exp_()
    return (y.exp() * y).sum() + (z * z.sin()).sum() + (w.cos() * w).sum()


def own_function(x):
    return Doubled.apply(x.sin(), x[:32].tanh()).tanh().sum()


def long_chain(x):
    for _ in range(1000):
        x = x + 1e-3
    return sum((x * scale).exp().mean() for scale in range(1, 9))


def channels_last(x):
    picture = x.view(2, 3, 16, 16).to(memory_format=torch.channels_last)
    return (functional.conv2d(picture, x[0, :27].view(1, 3, 3, 3).sin()).exp() * 0.1).sum() + picture.transpose(
        1, 3
    ).exp().sum()


def outputs_and_inputs(x):
    y = x.softmax(-1)
    values, _ = y.max(0)
    return (y.exp().sqrt() * y.sigmoid()).sum() + values.exp().sum() + y.cumsum(0).log().sum()


def nested_no_grad(x):
    with torch.no_grad():
        scale = x.exp().mean()
        mask = torch.zeros_like(x)
        mask.numpy()[:, ::2] = 1
    return (x.sin() * mask * scale).exp().sum()


CALCULATIONS = [
    sharing, expanded, reusing, complex_numbers, sparse, empty, written_before_it_is_saved, written_through_data,
    of_large_memory, in_place_of_other_types_and_strides,
    own_function, long_chain, channels_last, outputs_and_inputs, nested_no_grad,
]  # fmt: skip


class Calculation(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.x, self.function = nn.Parameter(numbers(48, 32, dtype=torch.float64) / 8), function

    def loss(self, step):
        return self.function(self.x * (1 + 0.01 * step)) / 1000


@pytest.mark.parametrize("function", CALCULATIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("budget", [0, "80KiB"])
def test_calculations(block, function, budget):
    """GIVEN a calculation over memory that is shared, written to, expanded, sparse, complex or reused
    WHEN it runs in the block
    THEN its gradient equals the one without the block."""
    block.budget = budget
    check(block, Calculation(function), own_loss)


BACKWARDS = {
    "twice": lambda loss, model: (loss.backward(retain_graph=True), loss.backward()),
    "grad": lambda loss, model: torch.autograd.backward(
        list(model.parameters()), torch.autograd.grad(loss, list(model.parameters()))
    ),
    "in parts": lambda loss, model: (
        torch.autograd.grad(loss, [model[-1].weight], retain_graph=True),
        loss.backward(),
    ),
    "twofold": lambda loss, model: sum(
        one.square().sum() for one in torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    ).backward(),
}


@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("name", BACKWARDS)
def test_backwards(block, name, where):
    # GIVEN a backward that runs twice, for selected tensors, or through itself, in the block or after it
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Sigmoid(), nn.Softmax(-1), nn.Linear(64, 8))
    backward = BACKWARDS[name]

    def run(model, around):
        seen = []
        for step in range(STEPS):
            model.zero_grad()
            with around():
                loss = squares(torch.float32)(model, step)
                if where == "inside":
                    backward(loss, model)
            if where == "outside":
                backward(loss, model)
            seen += [loss.detach(), *(one if one is None else one.clone() for one in state(model))]
        return seen

    same(run(model, block), run(copy.deepcopy(model), contextlib.nullcontext))
