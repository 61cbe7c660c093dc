"""Training beside frozen, paged weights: trainable weights stay on the device from the first forward with gradients."""

import copy
import threading
import warnings

import memlab
import pytest
import torch
from memlab._paging.plan_state import TRAINED
from paging.small import LoRA, mlp, paged, small_units  # noqa: F401 (a fixture)
from paging.zoo import build, call, ids
from torch import nn
from torch.utils.checkpoint import checkpoint
from waiting import HANG_SECONDS


def adapted(**options):
    """A frozen base whose layers have trainable adapters, and a paged copy."""
    torch.manual_seed(3)
    twin = nn.Sequential(*(LoRA(layer) for layer in mlp().requires_grad_(False)))
    return twin, paged(copy.deepcopy(twin), **{"budget": "min", "max_layer_size": 1} | options)


def infer(twin, model, times=3):
    for _ in range(times):
        x = torch.randn(4, 64)
        assert torch.equal(call(model, (x,)), call(twin, (x,)))


def step(one, x, run=None):
    """One training step, with an optimizer that is created after the forward or before."""
    optimizer = torch.optim.AdamW([p for p in one.parameters() if p.requires_grad], lr=1e-2)
    loss = ((run or one)(x) - 1).square().mean()
    loss.backward()
    optimizer.step()
    one.zero_grad()
    return loss.detach()


def train(twin, model, times=3, run=None):
    for _ in range(times):
        x = torch.randn(8, 64)
        assert torch.equal(step(model, x, run and run(model)), step(twin, x, run and run(twin)))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def adapters_bytes(model):
    spans = (p.untyped_storage().nbytes() for p in model.parameters() if p.requires_grad)
    return sum(-(-nbytes // 512) * 512 for nbytes in spans)


def in_units(model):
    return sum(unit.nbytes for unit in model.memlab.units)


@pytest.mark.parametrize("settled", [0, 1, 2, 4])
def test_inference_first_then_training(settled):
    # GIVEN adapters over a paged base, run without gradients: untraced, timed, or settled
    twin, model = adapted()
    infer(twin, model, settled)
    # THEN they are paged with the rest
    assert TRAINED not in model.memlab.kept
    assert settled == 0 or in_units(model) == model.memlab.host_bytes
    # WHEN they are trained, THEN they learn the same
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(twin, model)
    # AND only they stay on the device, as the plan shows
    assert model.memlab.kept[TRAINED] == adapters_bytes(twin)
    assert in_units(model) == model.memlab.host_bytes - adapters_bytes(twin)
    assert "trained" in str(model.memlab) and model.memlab.streamed_bytes > 0
    # AND the model runs, trains and is unpaged as before
    infer(twin, model)
    train(twin, model)
    memlab.unpage(model)
    train(twin, model)


def test_training_and_inference_by_turns():
    # GIVEN a paged model in which a different layer trains each time
    twin = mlp().requires_grad_(False)
    model = paged(copy.deepcopy(twin), budget="min", max_layer_size=1)
    infer(twin, model)
    for layer in (1, 3, 1, 0):
        for one in (twin, model):
            one.requires_grad_(False)
            one[layer].requires_grad_(True)
        # WHEN it is run and trained THEN the result is the same
        infer(twin, model, 1)
        train(twin, model, 2)
    # AND layers that were trained once stay on the device, frozen or not
    layers = {unit.name.partition(".")[0] for unit in model.memlab.units}
    assert layers == {"2", "4", "5"}
    # AND training all of it is refused without side effects
    model.requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"does not train.*no_grad"):
        model(torch.randn(3, 64))
    infer(twin, model)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed(reentrant):
    # GIVEN adapters that are trained with checkpoints around the whole model, which runs without gradients first
    twin, model = adapted()
    infer(twin, model, 1)

    def checkpointed(one):
        return lambda x: checkpoint(one, x.requires_grad_(), use_reentrant=reentrant)

    # THEN they learn the same
    train(twin, model, run=checkpointed)
    assert model.memlab.kept[TRAINED] == adapters_bytes(twin)


def test_a_mostly_trainable_model():
    # GIVEN a model with only one frozen table, first run with gradients enabled, as is common
    twin = build("whisper")
    model = build("whisper")
    model.load_state_dict(twin.state_dict())
    inputs = {"input_features": torch.randn(2, 16, 48), "labels": ids(2, 6)}
    paged(model)
    call(model, inputs)
    assert not model.memlab.kept.get(TRAINED)
    # WHEN almost all of it thereby stops being paged, THEN a warning at the caller's line reports it
    with pytest.warns(RuntimeWarning, match=r"require them.*no_grad") as said:
        loss = model(**inputs).loss
    assert said[0].filename == __file__
    assert "trained" in str(model.memlab)
    # AND it trains as unpaged; tied weights stay tied
    loss.backward()
    twin(**inputs).loss.backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None) and (ours.grad is None or torch.equal(ours.grad, theirs.grad))
    assert model.proj_out.weight is model.model.decoder.embed_tokens.weight


def merge(one, safe):
    """Like PEFT's LoRA layers: added in place, or replaced by the sum."""
    for layer in one:
        delta = layer.b.detach() @ layer.a.detach()
        if safe:
            layer.base.weight.data = layer.base.weight.data.clone() + delta
        else:
            layer.base.weight.data += delta
        layer.a.data.zero_()


@pytest.mark.parametrize("on_change", ["error", "upload"])
@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("budget", ["min", "1GiB"])
def test_adapters_are_merged(budget, safe, on_change):
    # GIVEN a paged model with trained, frozen adapters
    twin, _ = adapted()
    with torch.no_grad():
        for layer in twin:
            layer.b.normal_()
    twin.requires_grad_(False)
    model = paged(copy.deepcopy(twin), budget=budget, max_layer_size=1, on_change=on_change)
    infer(twin, model, 4)
    # WHEN they are merged
    merge(twin, safe)
    merge(model, safe)
    if safe and on_change == "error":
        # THEN replaced memory is refused with an explanation, and can be accepted
        with pytest.raises(RuntimeError, match=r"0\.base\.weight changed.*upload"):
            call(model, (torch.randn(2, 64),))
        model.memlab.refresh()
    # THEN the result is that of the merged model
    infer(twin, model, 3)


def test_no_room_for_trainable_weights():
    # GIVEN a budget that runs the model, but does not hold its trainable weights
    model = paged(mlp(depth=8), budget="40KiB", max_layer_size=1)
    model[0].requires_grad_(False)
    twin = copy.deepcopy(model)
    infer(twin, model)
    # WHEN it runs with gradients THEN the error suggests a fix
    for _ in range(2):
        with pytest.raises(ValueError, match=r"budget of 40\.0 KiB is too small: 1\.weight and 13 more.*no_grad"):
            model(torch.randn(2, 64))
    # AND it continues without gradients
    infer(twin, model)


class Packed(nn.Parameter):
    """A Parameter as a library of quantized weights defines it."""


def test_a_base_that_cannot_be_paged():
    # GIVEN a model whose frozen part is not plain memory, and larger than the rest
    twin = nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 512, bias=False))
    twin[1].weight = Packed(torch.randn(512, 8), requires_grad=False)
    # WHEN it is paged THEN a warning reports how little that is
    model = copy.deepcopy(twin)
    with pytest.warns(RuntimeWarning, match=r"2\.50 KiB are paged and 16\.0 KiB stay.*quantized"):
        paged(model)
    infer(twin, model, 1)
    # AND if all the rest is trained, nothing is left to page
    with pytest.warns(RuntimeWarning, match="require them"):
        train(twin, model)
    assert model.memlab.units == []
    infer(twin, model)


class Waiting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = mlp()
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.wait = False

    def forward(self, x):
        x = self.layers(x)
        if self.wait:
            self.wait = False
            self.reached.set()
            assert self.go_on.wait(HANG_SECONDS)
        return x


def test_training_is_refused_during_other_threads_forwards():
    # GIVEN a settled model with a thread in a forward
    model = Waiting().eval()
    twin = copy.deepcopy(model.layers)
    paged(model, budget="min", max_layer_size=1)
    infer(twin, model)
    twin[0].requires_grad_(False)
    model.layers[0].requires_grad_(False)
    x = torch.randn(2, 64)
    model.wait, results = True, []
    thread = threading.Thread(target=lambda: results.append(call(model, (x,))))
    thread.start()
    assert model.reached.wait(HANG_SECONDS)
    # WHEN a forward starts that would train weights THEN it fails with the reason, and the other thread's result is right
    with pytest.raises(RuntimeError, match=r"layers\.1\.weight and \d+ more would be trained.*other threads"):
        model(x)
    model.go_on.set()
    thread.join(HANG_SECONDS)
    assert torch.equal(results[0], call(twin, (x,)))
    # AND it succeeds afterwards
    with pytest.warns(RuntimeWarning, match="require them"):
        train(twin, model)
