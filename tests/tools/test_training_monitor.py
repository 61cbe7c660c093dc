"""`memlab.InfinityBatch` warns of mistakes in training loops, once, and at the loop's line."""

import gc
import warnings
import weakref

import memlab as package
import pytest
import torch
from memlab import training_warnings
from torch import nn
from torch.nn import functional
from trainings import Reader, training


def batches(ib, count):
    """The first batches of the loop."""
    for index, batch in enumerate(ib.dataloader):
        if index == count:
            return
        yield batch


def without_zero_grad(ib):
    for _inputs, targets in batches(ib, 3):
        ib.criterion(ib.batch_(), targets).backward()
        ib.step()


def without_backward(ib):
    for _inputs, targets in batches(ib, 2):
        ib.criterion(ib.batch_(), targets)
        ib.step()
        ib.zero_grad()


def a_step_too_many(ib):
    for _inputs, targets in batches(ib, 2):
        ib.zero_grad()
        ib.criterion(ib.batch_(), targets).backward()
        ib.step()
        ib.step()


def of_detached_outputs(ib):
    for _inputs, targets in batches(ib, 2):
        # A hand-written weight decay has gradients, so that backward itself raises no error.
        decay = sum(parameter.square().sum() for parameter in ib.model.parameters())
        (ib.criterion(ib.batch_().detach(), targets) + decay).backward()
        ib.step()
        ib.zero_grad()


def of_detached_outputs_by_methods(ib):
    for _ in batches(ib, 2):
        ib.loss(ib.batch_().detach())


def in_eval_mode(ib):
    ib.model.eval()
    for _inputs, targets in batches(ib, 2):
        ib.criterion(ib.batch_(), targets).backward()
        ib.optimizer.step()
        ib.optimizer.zero_grad()


def with_an_unused_layer(ib):
    ib.model.other = nn.Linear(3, 3)
    ib.optimizer = torch.optim.SGD(ib.model.parameters(), 0.1)
    for _inputs, targets in batches(ib, 2):
        ib.criterion(ib.batch_(), targets).backward()
        ib.step()
        ib.zero_grad()


def with_an_unused_layer_managed(ib):
    ib.model.other = nn.Linear(3, 3)
    ib.optimizer = torch.optim.SGD(ib.model.parameters(), 0.1)
    ib.epoch()


MISTAKES = {
    without_zero_grad: "gradients-not-zeroed",
    without_backward: "step-without-backward",
    a_step_too_many: "step-without-backward",
    of_detached_outputs: "loss-from-detached-outputs",
    of_detached_outputs_by_methods: "loss-from-detached-outputs",
    in_eval_mode: "training-in-eval-mode",
    with_an_unused_layer: "parameters-without-gradient",
    with_an_unused_layer_managed: "parameters-without-gradient",
}


@pytest.mark.parametrize("criterion", ["mean", "own"])
@pytest.mark.parametrize("loop", MISTAKES)
def test_omissions_of_a_loop_are_warned_about_once(loop, criterion):
    # GIVEN a loop with a mistake, such as a skipped step
    ib, _ = training()
    if criterion == "own":
        ib.criterion = lambda outputs, targets: functional.cross_entropy(outputs, targets)
    # WHEN it runs, THEN one warning names the mistake, at a line of the loop, and no other warning appears
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loop(ib)
    assert [warning.message.rule for warning in said] == [MISTAKES[loop]]
    assert issubclass(said[0].category, package.TrainingWarning) and said[0].filename == __file__
    # AND again with another criterion
    ib.criterion = nn.CrossEntropyLoss()
    if loop is not with_an_unused_layer:
        with pytest.warns(said[0].category):
            loop(ib)
    # AND the level "strict" raises an error, and the level "quiet" does nothing
    ib.warnings_level = "strict"
    with pytest.raises(said[0].category):
        loop(ib)
    ib.zero_grad()
    ib.warnings_level = "quiet"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop(ib)


def test_names_of_parameters_without_gradient():
    ib, _ = training(plan="strict")
    with pytest.raises(training_warnings.ParametersWithoutGradient, match=r"other\.weight, other\.bias") as raised:
        with_an_unused_layer(ib)
    assert raised.value.names == ["other.weight", "other.bias"]
    with pytest.raises(ValueError, match="'loud' is no level of warnings: must be one of 'strict', 'default', 'quiet'"):
        package.InfinityBatch(plan="loud")


def accumulating(ib):
    for index, (_inputs, targets) in enumerate(ib.dataloader):
        ib.criterion(ib.batch_(), targets).backward()
        if index % 2:
            ib.step()
            ib.zero_grad()


def zeroing_in_place(ib):
    for _inputs, targets in ib.dataloader:
        ib.optimizer.zero_grad(set_to_none=False)
        ib.criterion(ib.batch_(), targets).backward()
        ib.optimizer.step()


def with_a_closure(ib):
    ib.optimizer = torch.optim.LBFGS(ib.model.parameters(), max_iter=2)
    for inputs, targets in ib.dataloader:

        def closure(inputs=inputs, targets=targets):
            ib.optimizer.zero_grad()
            loss = ib.criterion(ib.batch_(inputs), targets)
            loss.backward()
            return loss

        ib.optimizer.step(closure)


def with_accumulate(ib):
    for inputs, targets in ib.dataloader:
        package.accumulate(ib.model, inputs, ib.criterion, targets=targets)
        ib.step()
        ib.zero_grad()


def with_evaluations(ib):
    for _ in range(2):
        ib.epoch()
        ib.evaluate()
        ib.model.eval()
        with torch.no_grad():
            for _inputs, targets in ib.dataloader:
                ib.loss(ib.batch_(), targets)


def with_another_optimizer_class(ib):
    class Descent:
        """An optimizer that is not PyTorch's."""

        def __init__(self, parameters):
            self.param_groups = [{"params": list(parameters)}]

        def step(self):
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter -= 0.1 * parameter.grad

        def zero_grad(self):
            for parameter in self.param_groups[0]["params"]:
                parameter.grad = None

    ib.optimizer = Descent(ib.model.parameters())
    ib.epoch()
    for _inputs, targets in ib.dataloader:
        ib.criterion(ib.batch_(), targets).backward()
        ib.step()
        ib.zero_grad()


@pytest.mark.parametrize(
    "loop",
    [accumulating, zeroing_in_place, with_a_closure, with_accumulate, with_evaluations, with_another_optimizer_class],
)
def test_loops_that_leave_out_nothing(loop):
    # GIVEN a correct loop of another kind, THEN memlab does not warn
    ib, _ = training(plan="strict")
    loop(ib)


def test_another_model_begins_anew():
    # GIVEN training in the middle of a batch
    ib, _ = training(plan="strict")
    _inputs, targets = next(iter(ib.dataloader))
    ib.batch_()
    ib.loss()
    # WHEN the model is replaced, THEN the batch of the old one is forgotten, and an optimizer of the old one is refused
    ib.model = Reader()
    with pytest.raises(RuntimeError, match="without a loss"):
        ib.backward()
    with pytest.raises(RuntimeError, match="none of the model's parameters"):
        ib.step()
    # AND the old optimizer is detached from the training: its steps do not affect it
    old, ib.optimizer = ib.optimizer, torch.optim.Adam(ib.model.parameters())
    old.step()
    ib.criterion(ib.batch_(), targets).backward()
    ib.step()


def test_nothing_is_kept_alive():
    # GIVEN training whose optimizer lives on, WHEN it is freed, THEN its model is too
    ib, _ = training()
    ib.epoch()
    model = weakref.ref(ib.model)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)
    ib.optimizer = optimizer
    del ib
    gc.collect()
    assert model() is None
    optimizer.step()
