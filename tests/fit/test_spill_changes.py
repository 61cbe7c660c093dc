"""The changes that make room in a training with memory on the host, one after the other in one run: results stay the same,
bit for bit. On the CPU, with the files that libmemlab.so embeds."""

import types

import memlab
import pytest
import test_state
import torch
from memlab._paging.torch_private import open_modes
from test_recompute import Native, assert_same, embedded
from torch import nn
from torch.nn import functional as F
from torch.optim import optimizer as optimizers

attached, original = test_state.attached, memlab.offload_activations
ON_HOST, STATE = 16 << 20, 64 << 20


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        width = 256
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
            )
            for _ in range(3)
        )
        self.head = nn.Linear(width, 2048, bias=False)

    def forward(self, x, ends=None):
        for block in self.blocks:
            x = x + block(x)
        if ends is not None:
            raise ends
        return self.head(x)


def trained(steps=14):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        for _ in range(2):  # Accumulates.
            x = torch.randn(512, 256)
            loss = F.cross_entropy(model(x), torch.randint(0, 2048, (512,)))
            loss.backward()
            losses.append(loss.detach())
        with pytest.raises(ValueError, match="own error"):
            model(x, ValueError("the program's own error"))
        with torch.no_grad():
            losses.append(model(x).sum())
        optimizer.step()
        optimizer.zero_grad()
        assert open_modes() == 0, step
    state = [value for values in optimizer.state.values() for value in values.values()]
    return [*losses, *model.state_dict().values(), *state, torch.get_rng_state()]


def spilling(monkeypatch, attached, on_host):
    """Attaches it. `on_host`: bytes on the host in each step."""
    module = torch.nn.modules.module
    for name in ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_forward_hooks_always_called"):
        monkeypatch.setattr(module, name, type(getattr(module, name))())
    monkeypatch.setattr(torch._C._nn, "cross_entropy_loss", torch._C._nn.cross_entropy_loss)
    native = Native()
    native.host_has = lambda nbytes: True
    names = embedded("guards.py", "fit_loss.py", "fit_state.py", "spill.py")
    loss = names["_LossInRows"](torch, least_bytes=0, rows_bytes=1 << 16)
    loss.is_on = False
    loss.install()
    fit = types.SimpleNamespace(loss=loss, host_state=attached(0), activations=None)

    class Spilling(names["_Spilling"]):
        def is_mine(self, optimizer):
            self.device = torch.device("cpu")
            return not self.has_given_up

        def take_back(self):
            self.most = on_host[self.steps] if self.steps < len(on_host) and not self.most else 0

        def state_bytes(self, optimizer):
            return STATE

    found = Spilling(native, torch, lambda *_: None, fit)

    found.activations.allocated = iter(range(0, 1 << 40, 1 << 24)).__next__

    def offload(budget):
        found.blocks += 1
        return original(0, device="cpu")

    found.blocks = 0
    monkeypatch.setattr(memlab, "offload_activations", offload)
    found.attach(optimizers)
    return found, native


def test_results_stay_the_same_through_all_changes(monkeypatch, attached):
    # GIVEN what a training computes, with dropout, accumulation, an error of the program and an evaluation in each step
    expected = trained()
    # WHEN memory is on the host for many steps
    spill, native = spilling(monkeypatch, attached, [ON_HOST] * 10)
    found = trained()
    # THEN each change is made
    made = " ".join(native.warnings)
    assert "The loss is now computed in rows" in made, native.warnings
    assert "Activations now keep" in made, native.warnings
    assert "All of the optimizer's state is now on the host" in made, native.warnings
    # AND activations leave in each forward from then on, also after those that fail
    assert spill.blocks >= 3 * 10
    # AND the results are the same
    assert_same(found, expected)


def test_errors_of_a_change_leave_the_program_alone(monkeypatch, attached):
    # GIVEN a Python without the package memlab
    expected = trained()
    _, native = spilling(monkeypatch, attached, [ON_HOST] * 10)
    monkeypatch.setitem(__import__("sys").modules, "memlab", None)
    # WHEN activations should leave; THEN a message has the reason, AND the program goes on as before
    assert_same(trained(), expected)
    assert any("activations stay on the GPU" in warning for warning in native.warnings), native.warnings


class Counted:
    """Hooks of a program on saved tensors."""

    def __init__(self):
        self.packed = 0

    def pack(self, tensor):
        self.packed += 1
        return tensor


def with_derivatives(model, x):
    """Takes derivatives with `torch.func` within a forward."""

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            slope = torch.func.grad(lambda it: it.square().sum())(x)
            return self.model(x + slope)

    return Outer()(x)


def within_hooks(model, x):
    counted = Counted()
    with torch.autograd.graph.saved_tensors_hooks(counted.pack, lambda tensor: tensor):
        found = model(x)
    return found + counted.packed / 1000


def after_an_interrupt(model, x):
    with pytest.raises(KeyboardInterrupt):
        model(x, KeyboardInterrupt())
    return model(x)


@pytest.mark.parametrize("use", [with_derivatives, within_hooks, after_an_interrupt])
def test_programs_with_hooks_derivatives_and_interrupts_stay_as_they_are(monkeypatch, attached, use):
    def run():
        torch.manual_seed(0)
        model = Net().eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        found = []
        for _ in range(8):
            value = use(model, torch.randn(512, 256))
            value.square().mean().backward()
            found += [value.detach(), *(parameter.grad.clone() for parameter in model.parameters())]
            optimizer.step()
            optimizer.zero_grad()
            assert open_modes() == 0
        return found

    # GIVEN what a program computes that takes derivatives in forward, has hooks on saved tensors, or interrupts a forward
    expected = run()
    # WHEN activations leave; THEN it computes the same
    spilling(monkeypatch, attached, [ON_HOST] * 8)
    assert_same(run(), expected)


def test_logits_that_the_program_changes_are_left_to_pytorch(monkeypatch, attached):
    # GIVEN a program that changes logits after the loss, which does not need them in backward
    def run():
        torch.manual_seed(0)
        model = Net().eval()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(6):
            logits = model(torch.randn(512, 256))
            loss = F.cross_entropy(logits, torch.zeros(512, dtype=torch.int64))
            logits.detach()[:, 0] = -torch.inf
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return [*model.state_dict().values()]

    expected = run()
    # WHEN memory is on the host; THEN the loss is not computed in rows, AND the results are the same
    _, native = spilling(monkeypatch, attached, [ON_HOST] * 6)
    assert_same(run(), expected)
    assert not any("in rows" in warning for warning in native.warnings), native.warnings
