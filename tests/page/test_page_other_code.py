"""Paging beside code that does not know memlab: methods that compute, weights in variables, hooks of other libraries."""

import copy

import memlab
import pytest
import torch
from paging.small import mlp, paged
from torch import nn


class TextAndImage(nn.Module):
    """Like CLIP: methods compute with the module's own parameters, and programs call them instead of the model."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(16, 64)
        self.positions = nn.Parameter(torch.randn(4, 64))
        self.blocks = nn.Sequential(*(nn.Linear(64, 64) for _ in range(6)))
        self.projection = nn.Parameter(torch.randn(64, 64))
        self.head = nn.Linear(64, 64)

    def encode_text(self, tokens):
        return (self.blocks(self.tokens(tokens) + self.positions)[:, -1]) @ self.projection

    def with_head(self, x):
        return nn.functional.linear(x, self.head.weight)  # The weight of a module that is not called.

    def later(self, x):
        return (lambda y: y @ self.projection)(x)

    def size(self):
        return self.projection.numel()  # Computes nothing: it has no input tensor.

    def forward(self, x, tokens):
        return self.head(x) + self.encode_text(tokens)


@pytest.mark.parametrize("forward_first", [True, False])
def test_methods_that_compute_are_forwards(forward_first):
    # GIVEN a paged model with methods that use its parameters
    torch.manual_seed(0)
    model = TextAndImage().eval()
    x, tokens = torch.randn(2, 64), torch.randint(0, 16, (2, 4))
    calls = {
        "encode_text": lambda: model.encode_text(tokens),
        "with_head": lambda: model.with_head(x),
        "later": lambda: model.later(x),
        "forward": lambda: model(x, tokens),
    }
    order = sorted(calls, key=lambda name: (name == "forward") != forward_first)
    with torch.no_grad():
        expected = {name: call() for name, call in calls.items()}
        paged(model, budget="min", max_layer_size=64 * 65)
        # WHEN the methods are called, before the model's forward or after it, THEN results are those of the unpaged model
        for name in order:
            for _ in range(4):
                assert torch.equal(calls[name](), expected[name]), name
    # AND each call counts as a forward, with copies, except methods that compute nothing
    assert model.memlab.counters["forwards"] > 8 and model.memlab.counters["copies"] > 8
    assert model.size() == 64 * 64
    # AND unpaging removes all of it
    memlab.unpage(model)
    assert not {"encode_text", "with_head", "later", "forward"} & model.__dict__.keys()


class LateUse(nn.Module):
    """Reads weights while their layers run, and on request uses one of them much later."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(64, 64) for _ in range(10)])

    def forward(self, x, late=None):
        weights = []
        for block in self.blocks:
            x = torch.relu(block(x))
            weights.append(block.weight)
        return x if late is None else x @ weights[late]


def test_a_weight_in_a_variable_stays_that_weight():
    # GIVEN a paged model whose forward holds weights in variables, and uses them late on a branch that was not traced
    torch.manual_seed(0)
    model, x = LateUse().eval(), torch.randn(4, 64)
    with torch.no_grad():
        expected = {late: model(x, late) for late in (None, *range(10))}
        paged(model, budget="min", max_layer_size=64 * 65)
        for _ in range(3):
            model(x)
        assert sum(unit.resident for unit in model.memlab.units) < 3
        # WHEN it takes that branch, THEN each variable still has its weight, and later forwards are as before
        for late in expected:
            assert torch.equal(model(x, late), expected[late]), late
            assert torch.equal(model(x), expected[None])


def test_a_weight_that_outlives_its_forward_stays_that_weight():
    # GIVEN a program that keeps a weight from within a forward
    torch.manual_seed(0)
    model, x = LateUse().eval(), torch.randn(4, 64)
    original, kept = model.blocks[4].weight.detach().clone(), []
    with torch.no_grad():
        paged(model, budget="min", max_layer_size=64 * 65)
        for _ in range(3):
            model(x)
        model.blocks[4].register_forward_hook(lambda module, *_: kept.append(module.weight))
        # WHEN other weights reuse its memory, THEN the program still has its values
        for _ in range(3):
            model(x)
            assert torch.equal(kept[-1], original)


def test_hooks_that_move_weights_are_refused():
    hooks = pytest.importorskip("accelerate.hooks")
    accelerate = pytest.importorskip("accelerate")
    # GIVEN a model that accelerate offloads
    model = mlp()
    accelerate.cpu_offload(model, execution_device="cpu")
    # WHEN it is paged or chunked, THEN the error names the module, the kind of hook and the remedy
    for page in (memlab.page, memlab.chunk):
        with pytest.raises(RuntimeError, match=r"this model has a hook of accelerate \(AlignDevicesHook\).*remove_hook"):
            page(model, "cpu")
    # AND the remedy works
    hooks.remove_hook_from_module(model, recurse=True)
    paged(model)
    with torch.no_grad():
        assert model(torch.ones(1, model[0].in_features)).isfinite().all()


def test_hooks_of_diffusers_that_move_weights_are_refused():
    hooks = pytest.importorskip("diffusers.hooks")
    model = mlp()
    hooks.apply_layerwise_casting(model, torch.float16, torch.float32, skip_modules_pattern=())
    with pytest.raises(RuntimeError, match=r"has a hook of diffusers \(layerwise_casting\).*without"):
        paged(model)


def test_other_libraries_see_where_a_paged_model_runs():
    hooks = pytest.importorskip("accelerate.hooks")
    # GIVEN a paged model; THEN it has the attribute from which diffusers pipelines read the device
    model = paged(mlp())
    assert model._hf_hook.execution_device == torch.device("cpu")
    # AND neither a copy nor the unpaged model has it
    assert not hasattr(copy.deepcopy(model), "_hf_hook")
    assert not hasattr(memlab.unpage(model), "_hf_hook")
    # AND a library that removes its hooks does no harm
    paged(model)
    hooks.remove_hook_from_module(model, recurse=True)
    with torch.no_grad():
        x = torch.ones(1, model[0].in_features)
        assert torch.equal(model(x), memlab.unpage(model)(x))
