"""Gradients through frozen paged weights, and gradients of weights without an owner."""

import copy

import memlab
import pytest
import torch
from paging.small import Bank, LoRA, mlp, paged, pair, same, small_units  # noqa: F401 (a fixture)
from paging.zoo import call
from torch import nn
from torch.utils.checkpoint import checkpoint


def test_training_is_refused_unless_frozen():
    model = paged(mlp(), budget="min", max_layer_size=1)
    # GIVEN a paged model with trainable weights, THEN training is refused with an explanation
    with pytest.raises(RuntimeError, match=r"does not train.*no_grad"):
        model(torch.randn(3, 64))
    memlab.unpage(model)
    # GIVEN the same model, frozen, between layers that train
    twin = copy.deepcopy(model).requires_grad_(False)
    model = paged(model.requires_grad_(False), budget="min", max_layer_size=1)
    for _ in range(4):
        x = torch.randn(3, 64, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        # WHEN gradients flow back through it, THEN they are the same
        model(x).square().sum().backward()
        twin(y).square().sum().backward()
        assert torch.equal(x.grad, y.grad)


def test_adapters_train_over_a_paged_base():
    # GIVEN a frozen base with trainable adapters
    torch.manual_seed(3)
    base = mlp().requires_grad_(False)
    twin = nn.Sequential(*(LoRA(layer) for layer in base))
    model = paged(copy.deepcopy(twin), budget="min")
    data = torch.randn(8, 16, 64)
    for one in (model, twin):
        optimizer = torch.optim.AdamW([p for p in one.parameters() if p.requires_grad], lr=1e-2)
        for x in data:
            loss = (one(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        one.loss = loss.detach()
    # THEN they learn the same
    assert torch.equal(model.loss, twin.loss)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_gradients_in_unusual_places():
    # GIVEN frozen paged blocks, run with gradient checkpointing
    twin, model = pair(mlp().requires_grad_(False))

    def gradient(one, x, way):
        x = x.clone().requires_grad_()
        if way == "checkpoint":
            y = checkpoint(one, checkpoint(one[2], x, use_reentrant=False), use_reentrant=False)
        else:
            # AND a model that enables gradients in a forward without any
            with torch.no_grad(), torch.enable_grad():
                y = one(x)
            call(one, (x.detach(),))
        return torch.autograd.grad(y.square().sum(), x)[0]

    for way in ["checkpoint", "within"] * 4:
        x = torch.randn(2, 64)
        assert torch.equal(gradient(model, x, way), gradient(twin, x, way)), way
    # AND a weight that is edited before the backward is not used silently
    y = model(x.requires_grad_()).sum()
    with torch.no_grad():
        model[3].weight.add_(1)
    with pytest.raises(RuntimeError, match=r"3\.weight was edited in place"):
        y.backward()


class Inner(nn.Module):
    """Computes gradients in its forward, whatever the caller's mode."""

    def __init__(self):
        super().__init__()
        self.layers = mlp()

    @torch.enable_grad()
    def forward(self, x):
        return self.layers(x)


def test_gradients_of_weights_requested_within_a_forward():
    # GIVEN a model that enables gradients although its caller disabled them
    model = paged(Inner().eval(), budget="min", max_layer_size=1)
    for _ in range(4):
        loss = call(model, (torch.randn(2, 64),)).square().sum()
        # THEN the gradient of a weight is refused, because it would be lost
        with pytest.raises(RuntimeError, match=r"a gradient was asked for a weight.*freeze"):
            loss.backward()
    # AND the gradient of its input is computed
    for _ in range(2):
        x = torch.randn(2, 64, requires_grad=True)
        loss = call(model, (x,)).square().sum()
        assert torch.autograd.grad(loss, x)[0].abs().sum() > 0


def test_activations_with_gradients_written_to_a_buffer():
    # GIVEN a frozen model that stores activations with gradients in a buffer
    twin, model = pair(Bank().requires_grad_(False))
    for turn in range(7):
        x = torch.randn(2, 64)
        kept = []
        for one in (model, twin):
            with torch.set_grad_enabled(turn == 3):
                kept.append(one(x.clone().requires_grad_(turn == 3), "write" if turn == 3 else "read"))
        assert torch.equal(*kept)
        if turn == 3:
            twin.bank = twin.bank.detach()


class RecordsRequiresGrad(nn.Linear):
    """Records in each forward whether its weight requires a gradient, by which PyTorch's operations choose kernels."""

    def __init__(self):
        super().__init__(64, 64)
        self.recorded = []

    def forward(self, x):
        self.recorded.append(self.weight.requires_grad)
        return super().forward(x)


@pytest.mark.parametrize("budget", ["min", "1GiB"])
def test_requires_grad_is_unchanged_in_forwards(budget):
    # GIVEN a model that is trainable, run without gradients, then frozen, then trainable again
    model = paged(nn.Sequential(*(RecordsRequiresGrad() for _ in range(4))).eval(), budget=budget, max_layer_size=1)
    expected = []
    kept = model[2].weight
    for requires in [True, True, True, False, False, True, True]:
        model[1].requires_grad_(requires)
        kept.requires_grad_(requires)
        call(model, (torch.randn(2, 64),))
        expected.append(requires)
    # THEN its forwards record the same as unpaged, each time
    assert model[1].recorded == model[2].recorded == expected and model[0].recorded == [True] * len(expected)


def test_a_model_made_in_inference_mode_trains_when_unpaged():
    # GIVEN parameters whose memory cannot be replaced, so that other Parameters replace them
    with torch.inference_mode():
        model = mlp()
    paged(model, budget="min", max_layer_size=1)
    call(model, (torch.randn(2, 64),))
    # WHEN it is unpaged THEN its Parameters are ordinary ones
    memlab.unpage(model)(torch.randn(2, 64)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
