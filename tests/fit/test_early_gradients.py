"""Gradients that `memlab run --fit` releases after the optimizer's step: only if the program drops them unread."""

import contextlib
import copy
import weakref

import pytest
import torch
from test_recompute import Native, assert_same, embedded
from torch import nn
from torch.optim import optimizer as optimizers


@pytest.fixture
def fit(monkeypatch):
    """Applies early gradients; returns what it warned of."""
    for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        monkeypatch.setattr(optimizers, name, type(getattr(optimizers, name))())
    monkeypatch.setattr(torch.utils, "weakref", weakref)
    for kind in (optimizers.Optimizer, nn.Module):
        monkeypatch.setattr(kind, "zero_grad", kind.zero_grad)

    def apply(rehearse):
        names = embedded(
            "guards.py", "fit_state.py", "fit_gradients.py", "fit_costs.py", "fit_snapshot.py", "fit_recompute.py", "fit.py"
        )
        native = Native()
        names["_Fit"](native, torch, {"early_gradients": True, "rehearse": rehearse}).attach()
        return native.warnings

    yield apply
    for kind in (nn.Parameter, torch.Tensor):
        if "grad" in kind.__dict__:
            del kind.grad


def zero_before_forward(model, optimizer, loss, step):
    optimizer.zero_grad()
    loss().backward()
    optimizer.step()


def zero_before_backward(model, optimizer, loss, step):
    value = loss()
    model.zero_grad()
    value.backward()
    optimizer.step()


def drop_by_hand(model, optimizer, loss, step):
    for parameter in model.parameters():
        parameter.grad = None
    loss().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def accumulate(model, optimizer, loss, step):
    loss().backward()
    if step % 2:
        optimizer.step()
        optimizer.zero_grad()


def inside_a_closure(model, optimizer, loss, step):
    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)


def under_a_default_device(model, optimizer, loss, step):
    with torch.device("cpu"):
        zero_before_forward(model, optimizer, loss, step)


def log_the_norm(model, optimizer, loss, step):
    zero_before_forward(model, optimizer, loss, step)
    torch.stack([parameter.grad.norm() for parameter in model.parameters()]).sum()


def set_to_zero(model, optimizer, loss, step):
    optimizer.zero_grad(set_to_none=False)
    loss().backward()
    optimizer.step()


def never_zero(model, optimizer, loss, step):
    loss().backward()
    optimizer.step()


def two_optimizers(model, optimizer, loss, step):
    zero_before_forward(model, optimizer, loss, step)
    torch.optim.SGD(model.parameters(), lr=1e-3).step()


class Twofold(torch.optim.SGD):
    """Steps by the step of another optimizer, as sharpness-aware ones do."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=1e-3)
        self.base = torch.optim.AdamW(self.param_groups, lr=1e-2)

    def step(self, closure=None):
        return self.base.step(closure)


def nested(model, optimizer, loss, step):
    zero_before_forward(model, Twofold(model.parameters()), loss, step)


class ByMethod:
    """A closure with a method that another optimizer may call."""

    def __init__(self, optimizer, loss):
        self.optimizer, self.loss = optimizer, loss

    def __call__(self):
        self.optimizer.zero_grad()
        value = self.loss()
        value.backward()
        return value

    def twice(self):
        return 2


class Asking(torch.optim.SGD):
    def step(self, closure):
        assert closure.twice() == 2
        return super().step(closure)


def asking_its_closure(model, optimizer, loss, step):
    asking = Asking(model.parameters(), lr=1e-2)
    asking.step(ByMethod(asking, loss))


def trained(step_of):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen = []

    def loss():
        value = model(torch.randn(4, 8)).square().mean()
        seen.append(value.detach())
        return value

    for step in range(6):
        step_of(model, optimizer, loss, step)
    return [*seen, *model.state_dict().values()]


@pytest.mark.parametrize(
    "step_of",
    [
        zero_before_forward,
        zero_before_backward,
        drop_by_hand,
        accumulate,
        inside_a_closure,
        under_a_default_device,
        nested,
        asking_its_closure,
    ],
)
def test_gradients_that_the_program_drops_are_released(fit, step_of):
    # GIVEN a training; WHEN it is rehearsed, THEN nothing reads gradients after a step
    plain = trained(step_of)
    warnings = fit(rehearse=True)
    assert_same(trained(step_of), plain)
    assert warnings == []
    # AND it computes the same
    for hooks in (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks):
        hooks.clear()
    fit(rehearse=False)
    assert_same(trained(step_of), plain)


@pytest.mark.parametrize(
    ("step_of", "why"),
    [
        (log_the_norm, "reads them after the step"),
        (set_to_zero, "sets them to zero"),
        (never_zero, "a later step uses them"),
        (two_optimizers, "a later step uses them"),
    ],
)
def test_gradients_that_the_program_needs_are_found_in_the_rehearsal(fit, step_of, why):
    warnings = fit(rehearse=True)
    with contextlib.suppress(AttributeError, RuntimeError):  # The rehearsal has released what the program reads.
        trained(step_of)
    assert len(warnings) == 1 and why in warnings[0]


def log_later(model, optimizer, loss, step):
    zero_before_forward(model, optimizer, loss, step)
    if step == 4:
        sum(parameter.grad is not None for parameter in model.parameters())


def set_to_zero_later(model, optimizer, loss, step):
    optimizer.zero_grad(set_to_none=step < 4)
    loss().backward()
    optimizer.step()


def accumulate_later(model, optimizer, loss, step):
    if step < 4:
        optimizer.zero_grad()
    loss().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("step_of", "why"),
    [
        (log_later, "the program reads them after the step"),
        (set_to_zero_later, "the program sets them to zero"),
        (accumulate_later, "a later step uses them"),
    ],
)
def test_gradients_that_the_program_needs_after_the_rehearsal_stop_it(fit, step_of, why):
    # GIVEN a program whose first steps, which were rehearsed, do not need gradients after a step; WHEN a later one does,
    # THEN it stops, AND names the option
    fit(rehearse=False)
    with pytest.raises(RuntimeError, match=f"but {why}. Run with --fit-without gradients"):
        trained(step_of)
    # AND reading gradients is ordinary again
    assert "grad" not in nn.Parameter.__dict__


def test_released_gradients_are_gone(fit):
    fit(rehearse=False)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 8)).sum().backward()
    gone = weakref.ref(model.weight.grad)
    optimizer.step()
    assert gone() is None
    # AND once the program drops them, reading is ordinary again
    optimizer.zero_grad()
    assert model.weight.grad is None and "grad" not in nn.Parameter.__dict__


def stepped(fit, parameters):
    """Makes a step with early gradients. Returns the optimizer."""
    fit(rehearse=False)
    parameters = list(parameters)
    optimizer = torch.optim.SGD(parameters, lr=1e-2)
    sum(parameter.square().sum() for parameter in parameters).backward()
    optimizer.step()
    return optimizer


def test_a_model_can_be_converted_by_swapping_its_parameters(fit):
    model = nn.Linear(8, 1)
    stepped(fit, model.parameters())
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        assert model.double().weight.dtype == torch.float64
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def test_sharding_carries_gradients_and_is_no_reason_to_stop(fit):
    # GIVEN code of PyTorch's that shards parameters, and reads and sets their gradients
    carrying = {"__name__": "torch.distributed.fsdp._fully_shard"}
    exec("def carry(one, other):\n    if one.grad is None:\n        one.grad = other", carrying)
    parameter = nn.Parameter(torch.ones(3))
    optimizer = stepped(fit, [parameter])
    carrying["carry"](parameter, torch.ones(3))
    # THEN a step that would have added to them stops, as the released ones are missing
    with pytest.raises(RuntimeError, match="a later step uses them"):
        optimizer.step()


def test_copies_of_tensors_have_gradients_of_their_own(fit):
    leaf = torch.ones(3, requires_grad=True)
    stepped(fit, [leaf])
    with pytest.raises(RuntimeError, match="reads them after the step"):
        copy.deepcopy(leaf)


def test_a_class_with_its_own_gradients_keeps_them(fit):
    class Doubling(nn.Parameter):
        grad = property(lambda it: 2 * torch.Tensor.grad.__get__(it))

    parameter = Doubling(torch.ones(3))
    stepped(fit, [parameter])
    assert parameter.grad.tolist() == [4, 4, 4]
