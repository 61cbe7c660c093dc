"""Modules whose activations `memlab run --fit` recomputes: equal to the plain program bit for bit, or refused by name.

Runs the file that libmemlab.so embeds, on the CPU, where every kernel computes.
"""

import copy
import functools
import gc
import pickle
import warnings
import weakref
from pathlib import Path

import pytest
import torch
import torch._dynamo.testing
from torch import nn
from torch.utils.checkpoint import checkpoint

SOURCES = Path(__file__).parents[2] / "interpose/src/python"


class Native:
    def __init__(self):
        self.warnings = []

    def warn(self, text):
        self.warnings.append(text)


def embedded(*sources):
    """Runs files that libmemlab.so embeds. Returns their names."""
    names: dict = {}
    for source in sources:
        exec(compile((SOURCES / source).read_text(), source, "exec"), names)
    return names


def fit(root, modules):
    """Applies a decision to roots of this class; returns what it warned of, and a function that ends it as a trial ends."""
    names = embedded("guards.py", "fit_costs.py", "fit.py")
    native = Native()
    made = names["_Fit"](native, torch, {"checkpoint": [{"root": root, "modules": modules}]})
    made.attach()

    def end():
        made.say_missing()
        if made.hook is not None:
            made.hook.remove()

    return native.warnings, end


class Block(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, *more, **keywords):
        return x + self.inner(x, *more, **keywords)


class Model(nn.Module):
    def __init__(self, *inner):
        super().__init__()
        self.blocks = nn.ModuleList(map(Block, inner))
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.flatten(1)[:, :8])


class Counting(nn.Module):
    """Depends on how often it was called, in a number and in a list."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.calls = 0
        self.means = [1.0]

    def forward(self, x):
        self.calls += 1
        self.means.append(self.means[-1] * 0.5 + 1)
        return torch.tanh(self.linear(x)) * self.calls + self.means[-1]


class Averaging(nn.Module):
    """Keeps a moving average in a buffer that it writes and uses."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("average", torch.zeros(8))

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        with torch.no_grad():
            self.average.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return y * (1 + self.average)


class Drawing(nn.Module):
    """Draws from its own generator."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x):
        return torch.tanh(self.linear(x)) * torch.rand(x.shape, generator=self.generator)


class Checkpointing(nn.Module):
    """Checkpoints its own parts."""

    def __init__(self, use_reentrant):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.run = functools.partial(checkpoint, use_reentrant=use_reentrant)

    def forward(self, x):
        for part in self.parts:
            x = self.run(lambda x, part=part: torch.tanh(part(x)), x)
        return x


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 8, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


def images():
    return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3))


def shared():
    linear = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    return linear, linear, linear


CASES = {
    "linear": lambda: (nn.Sequential(nn.Linear(8, 8), nn.GELU()), nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))),
    "batch norm": lambda: (images(), images()),
    "batch norm without momentum": lambda: (nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 8)),
    "instance norm": lambda: (nn.InstanceNorm2d(8, track_running_stats=True), images()),
    "counting": lambda: (Counting(), Counting()),
    "averaging": lambda: (Averaging(), Averaging()),
    "drawing": lambda: (Drawing(), Drawing()),
    "own checkpointing": lambda: (Checkpointing(False), Checkpointing(True)),
    "shared": shared,
    "recurrent": lambda: (Recurrent(), Recurrent()),
    "transformer": lambda: (
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    ),
    "spectral norm": lambda: (nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)), nn.Linear(8, 8)),
}

SHAPES = {"batch norm": (4, 8, 5, 5), "instance norm": (4, 8, 5, 5), "recurrent": (4, 5, 8), "transformer": (4, 5, 8)}


def made(case):
    torch.manual_seed(1)
    return Model(*CASES[case]())


def trained(model, shape, steps=5, between=None):
    """Trains, and returns everything that the training computed."""
    torch.manual_seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(shape)).square().mean()
        if between:
            between(model)
        loss.backward()
        seen += [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]
        optimizer.step()
        seen.append(torch.tensor([part.training for part in model.modules()]))
        with torch.no_grad():
            seen.append(model.train(False)(torch.ones(shape)).clone())
        model.train()
    return [*seen, *model.state_dict().values(), torch.get_rng_state()]


def assert_same(one, other):
    assert len(one) == len(other)
    for index, (a, b) in enumerate(zip(one, other, strict=True)):
        assert torch.equal(a, b), f"{index} of {len(one)}"


@pytest.mark.parametrize("case", CASES)
def test_training_is_the_same_bit_for_bit(case):
    # GIVEN a model, trained as it is
    shape = SHAPES.get(case, (4, 8))
    plain = trained(made(case), shape)
    # WHEN the activations of its blocks are recomputed
    model = made(case)
    saved: list = []
    warnings, end = fit("Model", ["blocks.0", "blocks.1"])
    try:
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: saved.append(tensor.numel()) or tensor, lambda tensor: tensor
        ):
            fitted = trained(model, shape)
    finally:
        end()
    # THEN losses, gradients, weights, buffers and random state are the same
    assert warnings == []
    assert_same(fitted, plain)
    assert type(model.blocks[0].__dict__["forward"]).__name__ == "_Recomputed"


def test_activations_are_not_kept():
    # GIVEN a block with a large inner tensor; WHEN it is recomputed; THEN the tensor dies after forward
    alive: list = []

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            y = torch.exp(self.linear(x))
            alive.append(weakref.ref(y))
            return y.sin()

    counts = []
    for names in ([], ["blocks.0"]):
        model = Model(Wide())
        _, end = fit("Model", names) if names else ([], lambda: None)
        loss = model(torch.randn(4, 8)).sum()
        counts.append(alive[-1]() is not None)
        loss.backward()
        end()
    assert counts == [True, False]


class Called(nn.Module):
    """Calls its block with a tensor in a list and one by name."""

    def __init__(self):
        super().__init__()
        self.block = Masked()
        self.given = []

    def forward(self, x):
        mask = torch.ones_like(x) * 0.5
        scales = [torch.full_like(x, 2.0)]
        self.given = [mask, scales]
        return self.block(x, scales=scales, mask=mask)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x, scales, mask):
        return torch.tanh(self.dropout(self.linear(x)) + mask) + scales[0]


def change_list(model):
    model.given[1][0] = torch.zeros(1)


def change_keyword(model):
    model.given[0].add_(1)


def change_bias(model):
    with torch.no_grad():
        model.block.linear.bias.add_(1)


def change_mode(model):
    model.eval()


@pytest.mark.parametrize("between", [None, change_list, change_mode])
def test_what_the_caller_changes_later_has_no_effect(between):
    # GIVEN a program that changes a list that it passed, or the mode, between forward and backward
    runs = []
    for names in ([], ["block"]):
        torch.manual_seed(1)
        model = Called()
        _, end = fit("Called", names) if names else ([], lambda: None)
        runs.append(trained(model, (4, 8), between=between))
        end()
    # THEN it computes the same
    assert_same(*runs)


@pytest.mark.parametrize(("between", "what"), [(change_keyword, "argument"), (change_bias, "parameter linear.bias")])
def test_a_change_that_cannot_be_undone_stops_with_the_modules_name(between, what):
    model = Called()
    _, end = fit("Called", ["block"])
    with pytest.raises(RuntimeError, match=rf"activations of block .* {what}.* was changed .*--fit-without block"):
        trained(model, (4, 8), between=between)
    end()


def test_modules_that_cannot_be_recomputed_are_left_out():
    # GIVEN a block with a hook inside, and one that gets an object with a state
    hooked = Model(nn.Linear(8, 8))
    calls = []
    hooked.blocks[0].inner.register_forward_hook(lambda *_: calls.append(1))
    warnings, end = fit("Model", ["blocks.0"])
    hooked(torch.randn(4, 8)).sum().backward()
    end()
    # THEN they run as they are, and the reason is reported
    assert calls == [1] and "inner has hooks" in warnings[0]

    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Caching()

        def forward(self, x):
            cache = Cache()
            y = self.block(x, cache)
            assert cache.entries == 1
            return y

    class Cache:
        entries = 0

    class Caching(nn.Linear):
        def __init__(self):
            super().__init__(8, 8)

        def forward(self, x, cache):
            cache.entries += 1
            return super().forward(x)

    warnings, end = fit("Cached", ["block"])
    Cached()(torch.randn(4, 8)).sum().backward()
    end()
    assert "an object of class Cache" in warnings[0]


def test_models_stay_models():
    # GIVEN a model with recomputed blocks
    model = made("linear")
    _, end = fit("Model", ["blocks.0", "blocks.1"])
    x = torch.randn(4, 8)
    model(x).sum().backward()
    # THEN a copy, a pickled one and a traced one compute the same, AND the copy's blocks are its own
    model.eval()
    expected = model(x)
    copied = copy.deepcopy(model)
    assert torch.equal(copied(x), expected) and copied.blocks[0].forward.__self__ is copied.blocks[0]
    assert torch.equal(torch.jit.trace(model, x)(x), expected)
    assert torch.equal(torch.func.functional_call(model, dict(model.named_parameters()), x), expected)
    per_sample = torch.func.vmap(torch.func.grad(lambda x: model(x[None]).sum()))(x)
    assert per_sample.shape == x.shape
    # AND forward looks like a method
    forward = model.blocks[0].forward
    assert forward.__func__ is Block.forward and forward.__code__ is Block.forward.__code__
    end()


def test_a_deleted_model_is_gone_at_once():
    model = made("linear")
    _, end = fit("Model", ["blocks.0", "blocks.1"])
    trained(model, (4, 8), steps=1)
    end()
    gone = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert gone() is None
    finally:
        gc.enable()


def test_a_model_can_be_pickled():
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
    x = torch.randn(4, 8)
    _, end = fit("Sequential", ["0", "1"])
    model(x).sum().backward()
    end()
    assert type(model[0].forward).__name__ == "_Recomputed"
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), model(x))


def test_double_backward_and_a_retained_graph():
    # GIVEN a gradient penalty, and two backwards of one graph
    grads = []
    for names in ([], ["blocks.0", "blocks.1"]):
        model = made("linear")
        _, end = fit("Model", names) if names else ([], lambda: None)
        torch.manual_seed(5)
        x = torch.randn(4, 8, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        slope.square().sum().backward()
        loss = model(x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        grads.append([x.grad, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)])
        end()
    assert_same(*grads)


def compiled_in(how, model):
    """Compiles a model, each part as one graph. Returns it, and a counter of graphs."""
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiling = functools.partial(torch.compile, backend=counter, fullgraph=True)
    if how == "whole":
        model = compiling(model)
    elif how == "by its method":
        model.compile(backend=counter, fullgraph=True)
    elif how == "blocks":
        model.blocks = nn.ModuleList(map(compiling, model.blocks))
    else:
        for block in model.blocks:
            block.inner = compiling(block.inner)
    return model, counter


@pytest.mark.parametrize("how", ["whole", "by its method", "blocks", "inner parts"])
def test_compiled_programs_keep_their_graphs(how):
    # GIVEN a compiled model, trained as it is
    model, graphs = compiled_in(how, made("linear"))
    plain = trained(model, (4, 8))
    # WHEN its blocks are to be recomputed
    model, graphs_of_fitted = compiled_in(how, made("linear"))
    with warnings.catch_warnings(record=True) as shown:
        messages, end = fit("OptimizedModule" if how == "whole" else "Model", ["blocks.0", "blocks.1"])
        try:
            fitted = trained(model, (4, 8))
        finally:
            end()
    # THEN the training is the same, with the same graphs
    assert_same(fitted, plain)
    assert graphs_of_fitted.frame_count == graphs.frame_count
    assert not any("global hooks" in str(warning.message) for warning in shown)
    # AND only blocks outside of graphs are recomputed
    unseen = "no Model with it was called outside of compiled code"
    why = {"whole": "they are in a compiled graph", "by its method": unseen}.get(how)
    assert messages == [f"--fit: the activations of blocks.{i} are not recomputed: {why}" for i in (0, 1) if why]
    assert all(("forward" in block.__dict__) is not bool(why) for block in model.blocks)
