"""offload_activations where kernels write memory that PyTorch does not track: results that may change are not recomputed."""

import pytest
import torch
from memlab._activations.operations import traits_of
from offloaded import STEPS, WAYS, around_forwards
from torch import nn


@pytest.fixture(params=WAYS)
def block(request, monkeypatch):
    yield from around_forwards(request, monkeypatch)


class InPlaceLoss(torch.autograd.Function):
    """A loss whose kernel overwrites its input outputs with the gradient, unseen by PyTorch."""

    @staticmethod
    def forward(ctx, outputs):
        values = outputs.detach().numpy()
        loss = float((values**2).sum())
        values[...] = 2 * values
        ctx.save_for_backward(outputs.detach())
        return torch.tensor(loss)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0] * gradient


class Doubled(torch.autograd.Function):
    """Writes in place, and marks the tensor dirty afterwards."""

    @staticmethod
    def forward(ctx, x):
        x.detach().numpy()[...] *= 2
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


def gradient_in_the_outputs(model, x):
    return InPlaceLoss.apply(model(x))


def written_after_a_write(model, x):
    return (Doubled.apply(model(x).add_(1)) * 1.5).square().sum()


def memory_of_numpy(model, x):
    buffer = x.numpy().copy()
    mask = torch.from_numpy(buffer).double()
    loss = (model(x).tanh() * mask[:, :1]).sum()
    return loss


@pytest.mark.parametrize("loss_of", [gradient_in_the_outputs, written_after_a_write, memory_of_numpy])
def test_unseen_writes_leave_gradients_right(block, loss_of):
    # GIVEN a program with writes that PyTorch does not track, and its gradients
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 48))
    for step in range(STEPS):
        x = torch.randn(40, 32, generator=torch.Generator().manual_seed(step))
        model.zero_grad()
        loss_of(model, x).backward()
        expected = [parameter.grad.clone() for parameter in model.parameters()]
        # WHEN its activations are offloaded or recomputed, THEN gradients are bit-identical
        model.zero_grad()
        with block():
            loss = loss_of(model, x)
        loss.backward()
        pairs = zip(model.parameters(), expected, strict=True)
        assert all(torch.equal(parameter.grad, gradient) for parameter, gradient in pairs), step


def test_collectives_write_without_saying_so():
    # GIVEN collective operations, whose schemas mark no argument as written; THEN they count as writes
    assert traits_of(torch.ops.c10d.allreduce_.default).writes_silently
    assert not traits_of(torch.ops.aten.add.Tensor).writes_silently
