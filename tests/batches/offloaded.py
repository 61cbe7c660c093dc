"""Helpers for the tests of offload_activations: training inside its block, and the same training without it."""

import contextlib
import copy
import itertools
import types

import memlab as package
import torch
from memlab._activations import copy_streams, forward_histories, forward_profile, offloaded_forward, storage_contents
from torch import nn

# All stages: two forwards record, one plans, and two use the plan and the order of the previous step.
STEPS = 5


class Ways:
    """Makes the block around each forward, and counts recomputations and copies."""

    def __init__(self, way, monkeypatch):
        self.recompute, self.repeats, self.copies, self.budget = way != "copies", 0, 0, "24KiB"
        run, save = storage_contents.Recomputation.run, copy_streams.CopyStream.save

        def counted_run(*arguments):
            self.repeats += 1
            return run(*arguments)

        def counted_save(*arguments):
            self.copies += 1
            return save(*arguments)

        monkeypatch.setattr(storage_contents.Recomputation, "run", counted_run)
        monkeypatch.setattr(copy_streams.CopyStream, "save", counted_save)

    def __call__(self, budget=None):
        return package.offload_activations(budget or self.budget, recompute=self.recompute, device="cpu")


def everything(operations, values, room, price):
    """Replaces `_native.choose_recomputation`: recomputes every repeatable operation."""
    return [is_repeatable for *_, is_repeatable in operations], [is_saved for _, is_saved in values]


WAYS = ["copies", "recomputation", "everything again"]


def around_forwards(request, monkeypatch):
    """Makes the block for tensors of any size: it only copies, recomputes what pays off with slow copies, or recomputes
    everything."""
    monkeypatch.setattr(offloaded_forward, "SMALLEST", 256)
    # Each operation takes one microsecond.
    clock = types.SimpleNamespace(perf_counter_ns=itertools.count(0, 1000).__next__)
    monkeypatch.setattr(forward_profile, "time", clock)
    monkeypatch.setattr(forward_histories, "_ALL", {})
    if request.param != "copies":
        monkeypatch.setattr(copy_streams.CopyStream, "bytes_per_second", lambda self: 1e3)
    if request.param == "everything again":
        monkeypatch.setattr(forward_profile._native, "choose_recomputation", everything)
        monkeypatch.setattr(forward_profile, "_cuts", lambda *arguments: set())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield Ways(request.param, monkeypatch)
    torch.set_num_threads(threads)
    torch._dynamo.reset()


def state(modules):
    """Gradients and buffers."""
    modules = modules if isinstance(modules, (list, tuple)) else [modules]
    tensors = [parameter.grad for module in modules for parameter in module.parameters()]
    return tensors + [buffer.clone() for module in modules for buffer in module.buffers()]


def same(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert one.dtype == other.dtype and one.stride() == other.stride()
            assert one.isfinite().all() and torch.equal(one, other), (one - other).abs().max()


def train(model, loss_of, around, steps=STEPS, backward=lambda loss: loss.backward()):
    """Trains with SGD; returns the losses, gradients and buffers of each step."""
    seen = []
    for step in range(steps):
        torch.manual_seed(step)
        model.zero_grad()
        with around():
            loss = loss_of(model, step)
        backward(loss)
        seen += [loss.detach(), *(None if one is None else one.clone() for one in state(model))]
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.01 * parameter.grad
    return seen


def check(block, model, loss_of, steps=STEPS, **options):
    """Trains a model in the block and a twin without it; asserts that all results are equal."""
    twin = copy.deepcopy(model)
    expected = train(twin, loss_of, contextlib.nullcontext, steps, **options)
    same(train(model, loss_of, block, steps, **options), expected)
    return block


def numbers(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def tokens(*shape, most=50):
    return torch.randint(most, shape, generator=torch.Generator().manual_seed(0))


def own_loss(model, step):
    return model.loss(step)


def squares(dtype):
    return lambda model, step: model(numbers(48, 32, seed=step, dtype=dtype)).square().mean()


def mlp(dtype=torch.float32):
    layers = [nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.Tanh(), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 8)]
    return nn.Sequential(*layers).to(dtype)
