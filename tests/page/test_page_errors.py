"""Invalid models, devices and paths are refused before anything moves, with an error that names valid ones."""

import memlab
import pytest
import torch
from paging.small import mlp, paged, small_units  # noqa: F401 (a fixture)
from torch import nn

MODEL = mlp()

NO_MODEL = {
    "lambda": (lambda x: x, "a lambda: give the model that it calls"),
    "method": (MODEL.forward, "the method forward of a model: give the Sequential itself"),
    "function": (mlp, "the function mlp: give the model"),
    "class": (nn.Linear, r"the class Linear: give a model made of it, Linear\("),
    "other-class": (dict, "the class dict$"),
    "state": (MODEL.state_dict(), "an OrderedDict: give the model, with its weights loaded"),
    "list": ([MODEL], "a list of models: .*one by one"),
    "path": ("model.safetensors", r"'model\.safetensors': memlab\.load\(path, model\)"),
    "parameters": (MODEL.parameters(), "a generator$"),
    "nothing": (None, "None$"),
}


@pytest.mark.parametrize("given", NO_MODEL)
def test_invalid_models(given):
    model, words = NO_MODEL[given]
    for name in ("page", "chunk", "unpage", "plan_of"):
        with pytest.raises(TypeError, match=rf"memlab\.{name} takes a model.*was given {words}"):
            getattr(memlab, name)(model)
    with pytest.raises(TypeError, match=rf"memlab\.load takes a model.*was given {words}"):
        memlab.load("weights", model)


def test_parts_and_other_models():
    model = paged(mlp())
    with pytest.raises(TypeError, match=r"unpage takes a model.*a plan: give the model that it belongs to"):
        memlab.unpage(model.memlab)
    for other in (model[0], nn.Sequential(model)):
        with pytest.raises(RuntimeError, match=r"is a part of a paged.*give the model that was paged"):
            memlab.unpage(other)
    with pytest.raises(RuntimeError, match=r"not paged: call memlab\.page\(model\) first"):
        memlab.unpage(mlp())
    compiled = torch.jit.script(mlp())
    for given, what in ((compiled, "that is"), (nn.Sequential(compiled), "whose part 0 is")):
        with pytest.raises(TypeError, match=rf"model {what} compiled by torch\.jit.*give the nn\.Module"):
            paged(given)


WRONG = [
    (lambda: memlab.page(mlp(), "8GiB"), TypeError, r"device='8GiB': must be a device.*budget=\"8GiB\""),
    (lambda: memlab.page(mlp(), None), TypeError, "device=None: must be a device"),
    (lambda: memlab.page(mlp(), "gpu"), ValueError, "device='gpu': must be a device"),
    (lambda: paged(mlp(), budget="8"), ValueError, r"8 has no unit; did you mean 8GiB\?"),
    (lambda: paged(mlp(), budget="8G"), ValueError, "8G is ambiguous: write 8GiB .* or 8GB"),
    (lambda: paged(mlp(), prefetch=True), ValueError, "prefetch=True: must be"),
    (lambda: paged(mlp(), micro_batch=True), ValueError, "micro_batch=True: must be"),
    (lambda: memlab.chunk(mlp(), "8GiB"), TypeError, "device='8GiB'.*max_capacity"),
    (lambda: memlab.chunk(mlp(), "cpu", [1]), TypeError, r"max_capacity=\[1\]: must be a number of parameters, a size"),
    (lambda: memlab.chunk(mlp(), "cpu", True), TypeError, "max_capacity=True: must be"),
    (lambda: memlab.chunk(mlp(), "cpu", float("nan")), ValueError, "max_capacity=nan: must be"),
    (lambda: memlab.load(mlp(), "weights/", "cpu"), TypeError, "path first and the model second.*other way round"),
    (lambda: memlab.load(None, mlp(), "cpu"), TypeError, "takes the path of a .safetensors file.*was given None"),
    (lambda: memlab.load(3, mlp(), "cpu"), TypeError, "was given an int"),
    (lambda: memlab.load("x", mlp(), "cpu", dtype="float16"), TypeError, "dtype='float16': must be a type such as torch"),
    (lambda: memlab.load("x", mlp(), "cpu", bugdet=1), TypeError, "no option 'bugdet': it takes .*budget"),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_arguments(number):
    call, kind, words = WRONG[number]
    with pytest.raises(kind, match=words):
        call()


def test_unsupported_operations_are_reported():
    model = paged(mlp())
    with pytest.raises(RuntimeError, match=r"torch\.jit\.trace.*unpage"), torch.no_grad():
        torch.jit.trace(model, torch.randn(1, 64))
    for again in (lambda: paged(model), lambda: paged(model[1]), lambda: paged(nn.Sequential(model, nn.Linear(64, 64)))):
        with pytest.raises(RuntimeError, match=r"paged or chunked already.*unpage"):
            again()
    with pytest.raises(RuntimeError, match=r"cannot be moved or cast.*unpage"):
        model.half()
    with pytest.raises(RuntimeError, match="not paged"):
        memlab.unpage(mlp())
    with pytest.raises(ValueError, match="no weights"):
        paged(nn.ReLU())
    with pytest.raises(ValueError, match="meta"):
        paged(nn.Linear(4, 4, device="meta"))
    for options in ({"prefetch": -1}, {"order": "any"}, {"on_change": "ignore"}, {"micro_batch": 0}, {"budget": "much"}):
        with pytest.raises(ValueError, match=next(iter(options.values())) if "budget" in options else next(iter(options))):
            paged(mlp(), **options)
    with pytest.raises(ValueError, match="mps"):
        memlab.page(mlp(), device="mps")


def test_names_and_numbers():
    # GIVEN a model with a layer called memlab
    model = mlp()
    model.memlab = nn.Linear(64, 64)
    paged(model, budget=2e6)
    assert isinstance(model.memlab, nn.Linear) and memlab.plan_of(model).stage == "untraced"
    # AND invalid budgets
    for budget in (1.5, True, [1]):
        with pytest.raises(ValueError, match="budget="):
            paged(mlp(), budget=budget)
    # AND a model that micro_batch does not apply to: it is left unchanged
    alone = nn.Linear(64, 64)
    with pytest.raises(ValueError, match="made of blocks"):
        paged(alone, micro_batch=2)
    assert "forward" not in vars(alone) and type(vars(alone)["_parameters"]) is dict
