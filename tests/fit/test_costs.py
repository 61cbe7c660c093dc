"""The message of `memlab run --fit` about the cost of its changes. The GPU's clock is a stand-in."""

import types

import pytest
import torch
from test_recompute import embedded
from torch import nn
from torch.optim import optimizer as optimizers


class Clock:
    """Stands for `torch.cuda`: time passes only in `spend`, in milliseconds."""

    def __init__(self):
        self.now = 0.0
        self.is_done = True
        self.is_capturing = False
        self.is_broken = False

    def spend(self, milliseconds):
        self.now += milliseconds

    def Event(self, enable_timing):
        assert enable_timing
        event = types.SimpleNamespace(query=lambda: self.is_done)

        def record():
            assert not self.is_capturing
            if self.is_broken:
                raise RuntimeError("CUDA error")
            event.at = self.now

        event.record = record
        event.elapsed_time = lambda end: end.at - event.at
        return event


@pytest.fixture
def measured(monkeypatch):
    """Returns the clock, the costs, what they reported, and an optimizer whose steps count."""
    hooks = type(optimizers._global_optimizer_post_hooks)()
    monkeypatch.setattr(optimizers, "_global_optimizer_post_hooks", hooks)
    clock, reports = Clock(), []
    costs = embedded("guards.py", "fit_costs.py")["_Costs"](
        types.SimpleNamespace(cuda=clock), lambda *report: reports.append(report), lambda: clock.is_capturing
    )
    costs.attach(optimizers)
    return clock, costs, reports, torch.optim.SGD(nn.Linear(2, 2).parameters())


def train(measured, steps):
    clock, costs, _, optimizer = measured
    for _ in range(steps):
        clock.spend(10)
        for _ in range(2):
            with costs.part("compute again"):
                clock.spend(3)
                with costs.part("compute again"):  # A checkpointed module in another one.
                    clock.spend(1)
        optimizer.step()


def test_a_step_and_its_parts_are_measured_once(measured):
    clock, _, reports, _ = measured
    # GIVEN steps of 18 ms, of which 8 are a change's; the first three are slow
    clock.spend(500)
    train(measured, 3)
    # WHEN steps of another optimizer happen between them, and the GPU is late
    torch.optim.SGD(nn.Linear(2, 2).parameters()).step()
    clock.is_done = False
    train(measured, 5)
    assert not reports
    clock.is_done = True
    train(measured, 4)
    # THEN the report comes once, when nothing has to wait for it
    assert reports == [(18.0, {"compute again": 8.0})]


def test_nothing_is_measured_within_a_capture(measured):
    clock, costs, reports, _ = measured
    # GIVEN a program that captures a graph after some steps
    train(measured, 4)
    clock.is_capturing = True
    # THEN no event is recorded into it, and nothing is reported
    train(measured, 6)
    assert not reports
    assert not costs.ends and not costs.parts


def test_an_optimizer_that_stops_ends_the_measurement(measured):
    clock, costs, reports, _optimizer = measured
    # GIVEN a program whose first optimizer is replaced while it is measured
    train(measured, 4)
    other = torch.optim.SGD(nn.Linear(2, 2).parameters())
    train((clock, costs, reports, other), 100)
    # THEN no events are kept
    assert not costs.ends and not costs.parts and not reports


def test_errors_of_events_stay_out_of_the_program(measured):
    clock, costs, reports, _ = measured
    # GIVEN a GPU that fails while a part is measured
    train(measured, 4)
    with pytest.raises(KeyError), costs.part("compute again"):
        clock.is_broken = True
        raise KeyError  # The program's own error.
    train(measured, 6)
    # THEN the program gets its own errors only
    assert not reports and not costs.parts
