"""Modules whose activations `memlab run --fit` recomputes: equal to the plain program bit for bit, or refused by name.

Runs the file that libmemlab.so embeds, on the CPU, where every kernel computes.
"""

import copy
import functools
import gc
import inspect
import pickle
import random
import threading
import types
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
import torch._dynamo.testing
from recomputed_modules import CASES, SHAPES, Averaging, Block, Model
from torch import nn

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
    names = embedded("guards.py", "fit_costs.py", "fit_snapshot.py", "fit_recompute.py", "fit.py")
    native = Native()
    made = names["_Fit"](native, torch, {"checkpoint": [{"root": root, "modules": modules}]})
    made.attach()

    def end():
        made.say_missing()
        nn.modules.module._global_forward_pre_hooks.clear()

    return native.warnings, end


def made(case):
    torch.manual_seed(1)
    return Model(*CASES[case]())


def trained(model, shape, steps=5, between=None):
    """Trains, and returns everything that the training computed."""
    torch.manual_seed(2)
    random.seed(2)
    np.random.seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(shape)).square().mean()
        if between:
            between(model)
        loss.backward()
        seen += [loss.detach(), *(one.grad.clone() for one in model.parameters() if one.grad is not None)]
        optimizer.step()
        seen.append(torch.tensor([part.training for part in model.modules()]))
        with torch.no_grad():
            seen.append(model.train(False)(torch.ones(shape)).clone())
        model.train()
    draws = torch.tensor([random.random(), np.random.rand()])
    return [*seen, *model.state_dict().values(), torch.get_rng_state(), draws]


def assert_same(one, other):
    assert len(one) == len(other)
    for index, (a, b) in enumerate(zip(one, other, strict=True)):
        assert torch.equal(a, b), f"{index} of {len(one)}"


@pytest.mark.parametrize("case", CASES)
def test_training_is_the_same_bit_for_bit(case, monkeypatch):
    # GIVEN a model, trained as it is, in a process without other threads that may draw random numbers
    monkeypatch.setattr(threading, "active_count", lambda: 1)
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


class Collecting(nn.Module):
    """Its blocks add their losses to a list, and write their results into a dictionary."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, values, losses):
            values["x"] = torch.tanh(self.linear(values["x"]))
            losses.append(values["x"].square().mean())

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Collecting.Block() for _ in range(3))

    def forward(self, x):
        values, losses = {"x": x}, []
        for block in self.blocks:
            block(values, losses)
        assert len(losses) == 3
        return values["x"].mean() + sum(losses)


class Tasks(nn.Module):
    """Computes with an attribute that the program sets."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(map(Block, (nn.Linear(8, 8), nn.Linear(8, 8))))
        for block in self.blocks:
            block.forward = types.MethodType(lambda block, x: torch.tanh(block.inner(x)) * block.task, block)

    def forward(self, x):
        both = []
        for task in (1.0, 3.0):
            for block in self.blocks:
                block.task = task
            both.append(self.blocks[1](self.blocks[0](x)))
        return torch.stack(both)


def freeze(model):
    for parameter in model.blocks[0].parameters():
        parameter.requires_grad_(not parameter.requires_grad)


@pytest.mark.parametrize(("kind", "between"), [(Collecting, None), (Tasks, None), (Tasks, freeze)])
def test_what_modules_share_with_the_program_stays_the_same(kind, between):
    # GIVEN blocks that write into arguments, or read what the program changes before backward
    runs = []
    for names in ([], ["blocks.0", "blocks.1"]):
        torch.manual_seed(1)
        model = kind()
        _, end = fit(kind.__name__, names) if names else ([], lambda: None)
        runs.append(trained(model, (4, 8), between=between))
        end()
    # THEN the training is the same
    assert_same(*runs)


def test_weights_of_a_functional_call_are_used_again():
    # GIVEN a training that learns to learn: it differentiates through a step of its weights
    runs = []
    for names in ([], ["blocks.0", "blocks.1"]):
        model = made("linear")
        _, end = fit("Model", names) if names else ([], lambda: None)
        x, weights = torch.randn(4, 8, generator=torch.Generator().manual_seed(3)), dict(model.named_parameters())
        loss = torch.func.functional_call(model, weights, (x,)).square().mean()
        slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
        fast = {name: one - 0.5 * slope for (name, one), slope in zip(weights.items(), slopes, strict=True)}
        torch.func.functional_call(model, fast, (x,)).square().mean().backward()
        runs.append([loss.detach(), *(parameter.grad for parameter in model.parameters())])
        end()
    assert_same(*runs)


class Averaged(Averaging):
    """Averages in training only; `every`: in each so-manieth forward."""

    def __init__(self, every=1, rows=1):
        super().__init__(rows)
        self.every = every
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.training and self.calls % self.every == 0:
            return super().forward(x)
        return torch.tanh(self.linear(x)) * (1 + self.average[0])


@pytest.mark.parametrize("every", [1, 3])
def test_buffers_that_only_some_forwards_write_are_found(every):
    runs = []
    for names in ([], ["blocks.0", "blocks.1"]):
        torch.manual_seed(1)
        model = Model(Averaged(every), Averaged(every))
        _, end = fit("Model", names) if names else ([], lambda: None)
        # GIVEN a model whose first forward is one of evaluation, with gradients
        model.eval()(torch.ones(4, 8)).sum()
        runs.append(trained(model.train(), (4, 8)))
        end()
    assert_same(*runs)


def replace_data(model):
    model.blocks[0].inner.linear.weight.data = torch.zeros(8, 8)


@pytest.mark.parametrize(
    ("every", "between", "what"), [(3, None, "tensor inner.average"), (1, replace_data, "parameter inner.linear.weight")]
)
def test_changes_that_only_some_forwards_make_stop_the_program(every, between, what):
    model = Model(Averaged(every, rows=4096))
    _, end = fit("Model", ["blocks.0"])
    with pytest.raises(RuntimeError, match=rf"activations of blocks.0 .* {what} was changed after its forward began"):
        trained(model, (4, 8), between=between)
    end()


@pytest.fixture
def idle_thread():
    """A thread that lives during the test, and may draw random numbers as far as memlab knows."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield
    end.set()
    thread.join()


@pytest.mark.usefixtures("idle_thread")
def test_random_numbers_of_other_threads_are_left_alone():
    # GIVEN a program that draws from Python's generator in another thread while a block runs
    class Waiting(nn.Linear):
        def forward(self, x):
            thread = threading.Thread(target=lambda: drawn.append(random.random()))
            thread.start()
            while not drawn:
                pass
            return super().forward(x)

    drawn: list = []
    model = Model(Waiting(8, 8))
    warnings, end = fit("Model", ["blocks.0"])
    trained(model, (4, 8))
    end()
    # THEN the block runs as it is, because its draws would look the same
    assert "draws from random, or another thread does" in warnings[0] and len(warnings) == 1


@pytest.mark.usefixtures("idle_thread")
@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_random_numbers_that_begin_later_beside_other_threads_are_drawn_again(draw):
    # GIVEN a block that begins to draw after some forwards, while another thread lives
    class Later(nn.Linear):
        def forward(self, x):
            return super().forward(x * (draw() if self.is_late else 1.0))

    def begin(model):
        model.blocks[0].inner.is_late = True

    runs = []
    for names in ([], ["blocks.0"]):
        torch.manual_seed(1)
        model = Model(Later(8, 8))
        model.blocks[0].inner.is_late = False
        warnings, end = fit("Model", names) if names else ([], lambda: None)
        runs.append([*trained(model, (4, 8), steps=2), *trained(model, (4, 8), between=begin)])
        end()
    # THEN it computes the same, and runs as it is from then on
    assert_same(*runs)
    assert len(warnings) == 1 and "or another thread does" in warnings[0]


def test_packed_sequences_are_arguments():
    class Packing(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(8, 8, batch_first=True)

        def forward(self, x):
            packed = nn.utils.rnn.pack_padded_sequence(x, [3, 2], batch_first=True)
            return self.lstm(packed)[0].data.sum()

    runs = []
    for names in ([], ["lstm"]):
        torch.manual_seed(1)
        model = Packing()
        warnings, end = fit("Packing", names) if names else ([], lambda: None)
        model(torch.ones(2, 3, 8)).backward()
        runs.append([parameter.grad for parameter in model.parameters()])
        end()
        assert not warnings
    assert_same(*runs)


def test_a_forward_that_does_something_else_the_second_time_stops_the_program():
    class Switching(nn.Linear):
        def forward(self, x):
            calls.append(1)
            return super().forward(x) if len(calls) % 2 else torch.exp(torch.tanh(super().forward(x)))

    calls: list = []
    model = Model(Switching(8, 8))
    _, end = fit("Model", ["blocks.0"])
    with pytest.raises(RuntimeError, match=r"blocks.0 .* its forward did something else .*--fit-without blocks.0"):
        trained(model, (4, 8))
    end()


def test_modules_that_cannot_be_recomputed_are_left_out():
    # GIVEN a block with a hook inside, one with TorchScript, and one that gets an object with a state
    hooked = Model(nn.Linear(8, 8))
    calls = []
    hooked.blocks[0].inner.register_forward_hook(lambda *_: calls.append(1))
    warnings, end = fit("Model", ["blocks.0"])
    hooked(torch.randn(4, 8)).sum().backward()
    end()
    # THEN they run as they are, and the reason is reported
    assert calls == [1] and "inner has hooks" in warnings[0]

    @torch.jit.script
    def activation(x):
        return torch.sigmoid(x) * torch.tanh(x)

    class Activated(nn.Linear):
        def forward(self, x):
            return activation(super().forward(x))

    model = Model(Activated(8, 8))
    warnings, end = fit("Model", ["blocks.0"])
    model(torch.randn(4, 8)).sum()
    end()
    assert "calls a function that is compiled by TorchScript" in warnings[0]

    scripted = Model(torch.jit.script(nn.Linear(8, 8)))
    warnings, end = fit("Model", ["blocks.0"])
    scripted(torch.randn(4, 8)).sum().backward()
    end()
    assert "inner is compiled by TorchScript" in warnings[0]

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
    assert inspect.getsource(forward) == inspect.getsource(Block.forward)
    end()


def test_compilers_of_source_code_see_the_forwards_of_the_program():
    model = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
    x = torch.randn(4, 8)
    warnings, end = fit("Sequential", ["0", "1"])
    expected = model(x)
    assert torch.equal(torch.jit.script(model)(x), expected)
    assert torch.equal(torch.export.export(mod=model, args=(x,), strict=True).module()(x), expected)
    assert type(model[0].forward).__name__ == "_Recomputed" and not warnings
    end()


def test_copies_of_a_modules_attributes_compute_with_their_own():
    # GIVEN a block whose forward the program has replaced, and another one
    def doubled(self, x):
        return 2 * self.inner(x)

    model = made("linear")
    model.blocks[1].forward = types.MethodType(doubled, model.blocks[1])
    _, end = fit("Model", ["blocks.0", "blocks.1"])
    x = torch.randn(4, 8)
    model(x).sum().backward()
    # WHEN a program copies the attributes of one, as libraries for meta-learning do, and all of the model
    clone = Block.__new__(Block)
    clone.__dict__ = model.blocks[0].__dict__.copy()
    clone._modules = {"inner": nn.Identity()}
    copied = copy.deepcopy(model)
    nn.init.zeros_(copied.blocks[1].inner[0].weight)
    nn.init.zeros_(copied.blocks[1].inner[0].bias)
    # THEN each computes with its own parts
    assert torch.equal(torch.jit.trace(copy.copy(clone), x)(x), 2 * x)
    assert torch.equal(clone(x), 2 * x) and torch.equal(clone(x), 2 * x)
    assert torch.equal(model.blocks[0](x), copied.blocks[0](x))
    assert not copied.blocks[1](x).any() and model.blocks[1](x).any()
    assert type(model.blocks[0].forward).__name__ == "_Recomputed"
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


def test_the_modules_of_two_models_of_a_class_are_those_of_either():
    names = embedded("guards.py", "fit_costs.py", "fit_snapshot.py", "fit_recompute.py", "fit.py")
    decision = [{"root": "Model", "modules": ["blocks.0", "blocks.1"]}, {"root": "Model", "modules": ["blocks.0"]}]
    assert names["_Fit"](Native(), torch, {"checkpoint": decision}).wanted == {"Model": ["blocks.0", "blocks.1"]}


def test_parts_of_the_class_of_the_model_are_no_models():
    # GIVEN a Sequential of Sequentials; WHEN its part 1 is recomputed; THEN part 1 of its parts is left as it is
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)))
    _, end = fit("Sequential", ["1"])
    model(torch.randn(4, 8)).sum().backward()
    end()
    assert [name for name, part in model.named_modules() if "forward" in part.__dict__] == ["1"]


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
