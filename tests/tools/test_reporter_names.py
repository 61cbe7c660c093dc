"""Names that `memlab.MemReporter` gives to tensors: of models, of optimizers' state, of gradients, and numbers.

Runs on the CPU, in this process. Other tests' tensors can appear too: rows are found by name.
"""

import gc
import subprocess
import sys
from collections import OrderedDict

import pytest
import torch
from memlab import MemReporter
from torch import nn


def test_buffers_and_plain_attributes_are_named(rows):
    # GIVEN a model with buffers and a tensor as an attribute; WHEN reported, THEN they have its names
    model = nn.Sequential(nn.BatchNorm1d(8))
    model[0].cache = torch.zeros(3)
    found = rows(MemReporter(model))
    assert {"0.weight", "0.bias", "0.running_mean", "0.running_var", "0.num_batches_tracked", "0.cache"} <= found.keys()


def test_names_are_not_inherited(rows):
    # GIVEN named and numbered tensors that were reported and then freed
    model = nn.Linear(3, 5)
    others = [torch.zeros(77) for _ in range(50)]
    reporter = MemReporter(model)
    before = rows(reporter)
    gone = {name for name, row in before.items() if row.shape == "(77,)"} | {"weight", "bias"}
    del model, others
    gc.collect()

    # WHEN others reuse their memory, THEN these have new names
    fresh = [torch.zeros(78) for _ in range(200)]
    names = {row.name for row in rows(reporter).values() if row.shape == "(78,)"}
    assert len(names) == len(fresh)
    assert not names & gone


def test_numbers_stay(rows):
    # GIVEN a numbered tensor; WHEN reported twice, THEN it has the same number
    kept, reporter = torch.zeros(91), MemReporter()
    first, second = ([row.name for row in rows(reporter).values() if row.shape == "(91,)"] for _ in range(2))
    assert first == second and len(kept) == 91


def test_names_follow_a_model_that_changes(rows):
    # GIVEN a reporter made before the model gets a new parameter; WHEN reported, THEN the new one is named
    model = nn.Linear(3, 3)
    reporter = MemReporter(model)
    model.weight = nn.Parameter(torch.zeros(333, 3))
    assert rows(reporter)["weight"].shape == "(333, 3)"


def test_optimizer_without_a_model(rows):
    # GIVEN a reporter without a model, and optimizers, one with nested state
    weight = nn.Parameter(torch.zeros(111))
    optimizers = [torch.optim.Adam([weight]), torch.optim.LBFGS([weight], max_iter=2), torch.optim.Adam([weight])]
    reporter = MemReporter()
    for optimizer in optimizers:
        reporter.add_optimizer(optimizer)
        weight.grad = torch.ones(111)
        optimizer.step(lambda: (weight * weight).sum())

    # WHEN reported, THEN the state has the number of the parameter, and the optimizers have different names
    found = rows(reporter)
    (name,) = (
        row.name
        for row in found.values()
        if row.name.startswith("Parameter") and row.shape == "(111,)" and ".grad" not in row.name
    )
    assert {f"Adam.{name}.exp_avg", f"Adam2.{name}.exp_avg"} <= found.keys()
    assert any(key.startswith(f"LBFGS.{name}.") for key in found)


def test_names_of_a_library_model(rows):
    # GIVEN a model with many modules and tied weights; WHEN reported, THEN it has PyTorch's names
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=50))
    names = {}
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]:
        names.setdefault(id(tensor), []).append(name)
    expected = ["+".join(those) for those in names.values()]
    found = [name for name in rows(MemReporter(model)) if name in expected]
    assert found == expected and "transformer.wte.weight+lm_head.weight" in found


def test_modules_and_tensors_in_several_places(rows):
    # GIVEN a module in two places, with a tensor that is also an attribute of another module
    model = nn.Module()
    model.first = model.second = nn.Linear(3, 3)
    model.alias = vars(model.first)["cache"] = torch.zeros(5)
    vars(model)["weight"] = model.first.weight

    # WHEN reported, THEN each tensor is one row: parameters under all paths, attributes of a module under its first
    found = [name for name in rows(MemReporter(model)) if not name.startswith(("Tensor", "Parameter"))]
    assert found == ["first.weight+second.weight+weight", "first.bias+second.bias", "alias+first.cache"]


def test_module_below_itself(rows):
    # GIVEN a module that a module below it refers back to; WHEN reported, THEN its tensors appear, and nothing is raised
    model = nn.Sequential(nn.Linear(3, 3))
    model[0].back = model
    found = rows(MemReporter(model))
    assert {"0.weight", "0.bias"} <= found.keys()
    model[0].back = None  # Otherwise it lives until the next collection, and other tests count it.


class NamesParameters(nn.Linear):
    def named_parameters(self, *arguments, **named):
        return ((f"mine.{name}", parameter) for name, parameter in super().named_parameters(*arguments, **named))


class NamesModules(nn.Sequential):
    def named_modules(self, memo=None, prefix="", remove_duplicate=True):
        yield prefix, self
        for index, module in enumerate(self.children()):
            yield f"{prefix}.part{index}", module


def names_modules_itself():
    model = nn.Sequential(nn.Linear(2, 2))
    model.named_modules = lambda *arguments, **named: iter([("renamed", model[0])])
    return model


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (NamesParameters(2, 2), ["mine.weight", "mine.bias"]),
        (nn.Sequential(NamesModules(nn.Linear(2, 2))), ["0.part0.weight", "0.part0.bias"]),
        (names_modules_itself(), ["renamed.weight", "renamed.bias"]),
    ],
    ids=["parameters", "modules below", "one module"],
)
def test_models_that_name_things_themselves(rows, model, expected):
    # GIVEN a class, or one model, with its own naming of parameters or modules; WHEN reported, THEN those names are used
    found = rows(MemReporter(model))
    assert set(expected) <= found.keys() and not {"weight", "0.0.weight", "0.weight"} & found.keys()


class Delegates(nn.Module):
    """Forwards attribute access to the module inside it, as wrappers do, and has a property that raises."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)

    @property
    def broken(self):
        raise RuntimeError("not to be read")


def test_models_that_answer_for_others(rows):
    # GIVEN a wrapper that forwards another module's attributes; WHEN reported, THEN each tensor has its own name only
    model = Delegates()
    found = rows(MemReporter(model))
    assert {"inner.weight", "inner.bias"} <= found.keys() and "weight" not in found


def test_dictionaries_with_an_order_or_items_of_their_own(rows):
    # GIVEN parameters in an ordered dictionary that was reordered, and in one whose entries differ from its iteration
    class Renames(dict):
        def items(self):
            return [(f"renamed_{key}", value) for key, value in super().items()]

    ordered, renaming = nn.Linear(2, 2), nn.Linear(2, 2)
    ordered._parameters = OrderedDict(ordered._parameters)
    ordered._parameters.move_to_end("weight")
    renaming._parameters = Renames(renaming._parameters)

    # WHEN reported, THEN names and order are those of the dictionaries
    assert [name for name in rows(MemReporter(ordered)) if name in ("weight", "bias")] == ["bias", "weight"]
    assert {"renamed_weight", "renamed_bias"} <= rows(MemReporter(renaming)).keys()


@pytest.mark.filterwarnings("ignore")
def test_scripted_model(rows):
    # GIVEN a TorchScript model, whose parameters are not in a Python dictionary; WHEN reported, THEN it has names
    model = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    assert {"0.weight", "0.bias", "1.running_mean"} <= rows(MemReporter(model)).keys()


class Optimizer:
    """An optimizer as libraries write them: any object with a state."""

    def __init__(self, state, groups=()):
        self.state, self.param_groups = state, groups


def test_state_of_all_forms(rows):
    # GIVEN an optimizer with nested state, state of no parameter, settings that are tensors, and state that contains itself
    weight, shared = nn.Parameter(torch.zeros(7)), torch.zeros(8)
    model = nn.Module()
    model.weight = weight
    nested = {"list": [torch.zeros(1), (torch.zeros(2), {3: torch.zeros(3)})], "count": 1, "name": "x", "none": None}
    nested["again"] = nested
    ordered = OrderedDict(first=torch.zeros(4), last=torch.zeros(5))
    ordered.move_to_end("first")
    state = {weight: nested | {"shared": shared}, "step": torch.zeros(6), "own": [shared, weight]}
    optimizer = Optimizer(state, [{"params": [weight, torch.zeros(9)], "lr": torch.zeros(()), "more": ordered}])
    reporter = MemReporter(model)
    reporter.add_optimizer(optimizer)

    # WHEN reported, THEN each tensor is named once, by its first place; parameters keep their names
    found = [name for name in rows(reporter) if name.startswith("Optimizer") or name == "weight"]
    groups = [f"Optimizer.param_groups.0.{what}" for what in ("lr", "more.last", "more.first")]
    of_weight = [f"Optimizer.weight.{what}" for what in ("list.0", "list.1.0", "list.1.1.3", "shared")]
    assert found == ["weight", *of_weight, "Optimizer.step", *groups]


def test_optimizers_without_state(rows):
    # GIVEN objects without a state, or without groups; WHEN reported, THEN nothing is raised
    reporter = MemReporter()
    optimizers = [Optimizer({}), type("Nothing", (), {})()]
    for optimizer in optimizers:
        reporter.add_optimizer(optimizer)
    assert rows(reporter) is not None


def test_gradients_are_behind_their_tensors(rows):
    # GIVEN gradients: of a parameter, of one frozen since, retained ones; and tensors that cannot have one
    model = nn.Linear(6, 6)
    between = model(torch.ones(2, 6)).exp()
    between.retain_grad()
    after = between * 2
    after.sum().backward()
    model.bias.requires_grad_(False)
    model.between, model.after = between, after

    # WHEN reported, THEN each gradient follows its tensor, and PyTorch has not warned
    names = list(rows(MemReporter(model)))
    expected = ["weight", "weight.grad", "bias", "bias.grad", "between", "between.grad", "after"]
    assert names[: len(expected)] == expected


def test_gradients_with_names_of_their_own(rows):
    # GIVEN a gradient that is an attribute of the model, one of two tensors, and one that is a tensor of the program
    model = nn.Module()
    model.named, model.first, model.second, model.held = (nn.Parameter(torch.zeros(4)) for _ in range(4))
    model.named.grad = model.kept = torch.ones(4)
    model.first.grad = model.second.grad = torch.ones(4)
    model.held.grad = held = torch.ones(4, 1).view(4)

    # WHEN reported, THEN the first has only its own name, the second is a row for each, the third only behind its tensor
    found = rows(MemReporter(model))
    names = [name for name in found if not name.startswith(("Tensor", "Parameter"))]
    assert names == ["named", "first", "first.grad", "second", "second.grad", "held", "held.grad", "kept"]
    assert (found["second.grad"].shares, found["second.grad"].nbytes, found["kept"].nbytes) == ("first.grad", 0, 512)
    assert not [row for row in found.values() if row.shares == "held.grad"] and len(held) == 4


def test_two_threads_report_at_once():
    # GIVEN a model whose dictionaries run code of the program, in which another thread can report
    program = """
import threading, torch, memlab
class Slow(dict):
    def items(self):
        for _ in range(2000): pass
        return list(super().items())
model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(200)))
for module in model:
    module._parameters = Slow(module._parameters)
optimizer = torch.optim.Adam(model.parameters())
optimizer.state = Slow({weight: Slow(step=torch.zeros(2)) for weight in model.parameters()})
reporter = memlab.MemReporter(model)
reporter.add_optimizer(optimizer)
found = []
import sys; sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=lambda: found.extend(len(reporter.collect("cpu").devices["cpu"].names) for _ in range(5)))
           for _ in range(3)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print(len(found), min(found) >= 800)
"""
    # WHEN three threads report with one reporter, THEN each report is complete
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "15 True\n", done.stderr
