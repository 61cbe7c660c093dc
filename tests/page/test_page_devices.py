"""Models over several devices compute the same as on one, each device within its budget, with one hop per border.

The CPU stands in for devices here ("cpu:0", "cpu:1"): each has its own pipeline and budget, and hops are copies.
"""

import copy
import os
import pickle
import threading

import memlab
import pytest
import torch
from memlab._paging.plan_state import TRAINED
from paging.small import mlp, same, small_units  # noqa: F401 (a fixture)
from paging.zoo import ZOO, build, call
from safetensors.torch import save_file
from torch import nn

TWO = ["cpu:0", "cpu:1"]
THREE = [*TWO, "cpu:2"]


def spread(model, devices=TWO, **options):
    return memlab.page(model, devices, **options)


def run(model, *inputs):
    with torch.no_grad():
        return [model(x) for x in inputs]


def pair(model, devices=TWO, **options):
    """A model, and its settled copy over several devices."""
    twin = copy.deepcopy(model)
    spread(model, devices, **{"max_layer_size": 1} | options)
    run(model, *[torch.randn(3, 64)] * 4)
    assert memlab.plan_of(model).stage == "settled"
    return twin, model


def where(model):
    """Names of each device's units."""
    return [[unit.name for unit in plan.units] for plan in memlab.plan_of(model).devices]


@pytest.mark.parametrize("devices", [TWO, THREE], ids=["two", "three"])
@pytest.mark.parametrize("name", ZOO)
def test_zoo(name, devices):
    # GIVEN a model, and its results for five inputs in a row
    torch.manual_seed(1)
    inputs = [ZOO[name].inputs() for _ in range(5)]
    twin, model = build(name), build(name)
    model.load_state_dict(twin.state_dict())
    with torch.no_grad():
        expected = [call(twin, one) for one in inputs]
    keys = {key: value.clone() for key, value in twin.state_dict().items()}
    parameters = [(name, id(parameter)) for name, parameter in model.named_parameters()]
    # WHEN it is paged to several devices
    spread(model, devices)
    # THEN its results are the same
    with torch.no_grad():
        for one, result in zip(inputs, expected, strict=True):
            assert same(call(model, one), result)
    assert memlab.plan_of(model).stage == "settled"
    # AND it is the same model
    assert [(name, id(parameter)) for name, parameter in model.named_parameters()] == parameters
    state = model.state_dict()
    assert list(state) == list(keys) and all(torch.equal(state[key], keys[key]) for key in keys)
    # AND after unpaging it is an ordinary model
    assert memlab.unpage(model) is model
    with torch.no_grad():
        assert same(call(model, inputs[0]), call(twin, inputs[0]))
    assert "forward" not in vars(model) and type(vars(model)["_parameters"]) is dict


def test_each_device_stays_within_its_budget(monkeypatch):
    # GIVEN eight layers of 16.5 KiB, devices with room for two, three and one of them, and a split decided by copies
    monkeypatch.setattr("memlab._paging.device_capacities._bandwidth", lambda *_: 1e9)
    monkeypatch.setattr("memlab._paging.stretch_pagers.operations_per_second", lambda *_: 1e12)
    budgets = {"cpu:0": "33KiB", "cpu:1": "50KiB", "cpu:2": "17KiB"}
    twin, model = pair(mlp(depth=8), THREE, budget=budgets)
    plan = memlab.plan_of(model)
    # THEN the layers are on the devices in order, and each device stays within its room
    assert [name for names in where(model) for name in names] == [str(index) for index in range(8)]
    assert [len(names) for names in where(model)] == [2, 4, 2]
    for part, budget in zip(plan.devices, (33 << 10, 50 << 10, 17 << 10), strict=True):
        assert 0 < part.device_bytes <= budget
    # AND each forward copies the rest
    before, forwards = plan.counters, 5
    inputs = torch.randn(forwards, 3, 64)
    for ours, theirs in zip(run(model, *inputs), run(twin, *inputs), strict=True):
        assert torch.equal(ours, theirs)
    copied = plan.counters["copied_bytes"] - before["copied_bytes"]
    assert copied == forwards * plan.streamed_bytes == forwards * sum(part.streamed_bytes for part in plan.devices) > 0


def test_one_hop_at_each_border():
    # GIVEN layers that receive a mask beside the activations, on three devices
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Bilinear(16, 16, 16) for _ in range(6))

        def forward(self, x):
            mask = x.sign() * 2
            for layer in self.layers:
                x = layer(x, mask)
            return x

    twin = Masked()
    model = spread(copy.deepcopy(twin), THREE)
    x = torch.randn(2, 16)
    run(model, *[x] * 4)
    assert len(memlab.plan_of(model).devices) == 3
    # WHEN it runs
    before = memlab.plan_of(model).counters
    results = run(model, *[x] * 5)
    after = memlab.plan_of(model).counters
    # THEN each forward hops twice, with the activations and the mask once each
    assert after["forwards"] - before["forwards"] == 5
    assert after["hops"] - before["hops"] == 5 * 2
    assert after["hop_bytes"] - before["hop_bytes"] == 5 * 2 * 2 * x.nbytes
    assert all(torch.equal(result, twin(x)) for result in results)


def test_nothing_after_a_border_needs_what_was_before():
    # GIVEN residual blocks, so that only the beginning of a block can be a border
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            return x + self.other(self.one(x).relu())

    _, model = pair(nn.Sequential(*(Block() for _ in range(4))))
    # THEN both layers of a block are on one device
    first, second = ({name.split(".")[0] for name in names} for names in where(model))
    assert first | second == set("0123") and not first & second


def test_memory_that_is_written_to_is_not_copied_to_another_device():
    # GIVEN a model whose layers write into memory that was allocated before them
    class Collecting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Into() for _ in range(4))

        def forward(self, x):
            out = torch.zeros(4, *x.shape)
            for index, layer in enumerate(self.layers):
                layer(x, out[index])
            return out

    class Into(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(64, 64)

        def forward(self, x, out):
            out.copy_(self.linear(x))

    twin = Collecting()
    # THEN it runs on one device, with the same results, and a warning gives the reason
    with pytest.warns(RuntimeWarning, match="cannot be cut"):
        _, model = pair(copy.deepcopy(twin))
    x = torch.randn(3, 64)
    assert torch.equal(run(model, x)[0], run(twin, x)[0])


def test_layers_with_shared_state_stay_on_one_device():
    # GIVEN layers that also read a value from a place that they share with the model
    class Scaled(nn.Module):
        def __init__(self, place):
            super().__init__()
            self.linear, self.place = nn.Linear(64, 64), place

        def forward(self, x):
            return self.linear(x) * self.place["scale"]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.place = {}
            self.layers = nn.Sequential(*(Scaled(self.place) for _ in range(4)))

        def forward(self, x):
            self.place["scale"] = x.abs().mean(0)
            return self.layers(x)

    twin = Model()
    # THEN they are on one device, with the same results, and a warning gives the reason
    with pytest.warns(RuntimeWarning, match="cannot be cut"):
        _, model = pair(copy.deepcopy(twin))
    x = torch.randn(3, 64)
    assert torch.equal(run(model, x)[0], run(twin, x)[0])


def tied(width=64, words=50):
    model = nn.Sequential(nn.Embedding(words, width), *(nn.Linear(width, width) for _ in range(4)), nn.Linear(width, words))
    model[5].weight = model[0].weight
    return model


def tied_pair(**options):
    twin = tied()
    model = spread(copy.deepcopy(twin), max_layer_size=1, **options)
    words = torch.randint(0, 50, (2, 30))
    run(model, *[words] * 4)
    first, second = memlab.plan_of(model).devices
    assert first.units and second.units and model[0].weight is model[5].weight
    return twin, model, words


@pytest.mark.parametrize("way", ["in place", "data", "numpy", "other memory"])
@pytest.mark.parametrize("module", [0, 5])
def test_edits_reach_tied_weights_on_both_devices(way, module):
    # GIVEN a weight that the first and the last device share
    twin, model, words = tied_pair(on_change="upload")
    run(model, words)  # Copies the values that `tied_pair` has read through both modules.
    # WHEN it is edited through one of its modules
    with torch.no_grad():
        for one in (twin, model):
            if way == "in place":
                one[module].weight.mul_(2)
            elif way == "data":
                one[module].weight.data.mul_(2)
            elif way == "numpy":
                one[module].weight.detach().numpy()[:] *= 2
            else:
                one[module].weight.data = one[module].weight.detach() * 2
    # THEN both have the new value
    assert torch.equal(run(model, words)[0], run(twin, words)[0])
    assert torch.equal(model.state_dict()["5.weight"], twin.state_dict()["0.weight"])


def test_edits_are_refused():
    # GIVEN a model on two devices
    twin, model, words = tied_pair()
    with torch.no_grad():
        model[5].weight.mul_(2)
        twin[5].weight.mul_(2)
    # THEN an edit is refused until it is accepted
    with pytest.raises(RuntimeError, match=r"refresh\(\)"):
        run(model, words)
    model.memlab.refresh()
    assert torch.equal(run(model, words)[0], run(twin, words)[0])


def test_untouched_tied_weights_are_not_copied_again():
    # GIVEN a tied weight on two devices, resident on both
    _, model, words = tied_pair(budget="1MiB")
    run(model, words)  # Copies the values that `tied_pair` has read.
    before = memlab.plan_of(model).counters
    run(model, *[words] * 3)
    # THEN forwards without edits copy nothing
    assert memlab.plan_of(model).counters["reloads"] == before["reloads"]


def test_gradients_through_frozen_weights():
    # GIVEN frozen layers that each forward copies, on two devices
    twin, model = pair(mlp().requires_grad_(False), budget="20KiB")
    x = torch.randn(3, 64)
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    model(one).square().sum().backward()
    twin(other).square().sum().backward()
    # THEN the gradient of the input is the same
    assert torch.equal(one.grad, other.grad)


def test_training_around_frozen_weights():
    # GIVEN a model with one trained layer on each device
    twin = mlp(depth=6).requires_grad_(False)
    for index in (0, 5):
        twin[index].requires_grad_(True)
    model = spread(copy.deepcopy(twin), max_layer_size=1)
    x = torch.randn(3, 64)
    # THEN the first forward cannot know the devices for training, and the error suggests a fix
    with pytest.raises(RuntimeError, match=r"run this one under torch.no_grad\(\)"):
        model(x)
    run(model, *[x] * 4)
    # AND then they train on their devices
    optimizers = [torch.optim.SGD([p for p in one.parameters() if p.requires_grad], 0.1) for one in (twin, model)]
    for _ in range(3):
        for one, optimizer in zip((twin, model), optimizers, strict=True):
            optimizer.zero_grad()
            one(x).square().sum().backward()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(twin.parameters(), model.parameters(), strict=True))
    assert all(TRAINED in part.kept for part in memlab.plan_of(model).devices)


def test_tied_weights_do_not_train_on_two_devices():
    # GIVEN a tied weight on two devices, which requires a gradient
    _, model, words = tied_pair()
    # THEN the error of a forward that would train it names the weight
    with pytest.raises(RuntimeError, match=r"0.weight would be trained .* freeze it, or page the model to one device"):
        model(words)


def test_threads():
    # GIVEN a model on two devices whose layers are copied
    twin, model = pair(mlp(), budget="40KiB")
    inputs = torch.randn(4, 3, 64)
    expected = run(twin, *inputs)
    wrong = []

    def work(which):
        for _ in range(20):
            if not torch.equal(run(model, inputs[which])[0], expected[which]):
                wrong.append(which)

    # WHEN threads run it at the same time
    threads = [threading.Thread(target=work, args=(which,)) for which in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # THEN each gets its result
    assert not wrong


@pytest.mark.parametrize("forwards", [0, 1, 4])
def test_an_exception_in_the_middle(forwards):
    # GIVEN a model whose fifth layer fails at times, before and after it was surveyed
    class Failing(nn.Linear):
        fails = False

        def forward(self, x):
            if self.fails:
                raise KeyError("fails")
            return super().forward(x)

    twin = mlp()
    twin[4] = Failing(64, 64)
    model = spread(copy.deepcopy(twin), budget="40KiB", max_layer_size=1)
    x = torch.randn(3, 64)
    run(model, *[x] * forwards)
    # WHEN it fails
    model[4].fails = True
    with pytest.raises(KeyError):
        run(model, x)
    model[4].fails = False
    # THEN the next forwards are right
    assert all(torch.equal(result, run(twin, x)[0]) for result in run(model, *[x] * 5))
    assert memlab.plan_of(model).stage == "settled"


def test_layers_in_another_order():
    # GIVEN a model that runs its layers in the order of an argument
    class Ordered(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

        def forward(self, x, order=range(6)):
            for index in order:
                x = self.layers[index](x)
            return x

    twin, model = pair(Ordered(), budget="40KiB")
    x = torch.randn(3, 64)
    with torch.no_grad():
        # THEN it switches between devices as needed, and is right
        for order in ([5, 0, 4, 1], [3, 3, 3], [0], range(6), [5]):
            assert torch.equal(model(x, order), twin(x, order))
        # AND so is a single layer
        assert torch.equal(model.layers[5](x), twin.layers[5](x))


def test_a_budget_that_is_too_small_is_refused_and_the_model_is_unchanged():
    # GIVEN a device on which no layer fits
    twin = mlp()
    model = copy.deepcopy(twin)
    with pytest.raises(ValueError, match="too small"):
        run(spread(model, budget=["2KiB", "2KiB"]), *[torch.randn(3, 64)] * 2)
    # THEN it can be unpaged, and paged with a larger budget
    memlab.unpage(model)
    x = torch.randn(3, 64)
    assert torch.equal(run(spread(model), *[x] * 4)[3], run(twin, x)[0])


def test_one_device_in_the_list_is_that_device():
    model = spread(mlp(), ["cpu"])
    run(model, *[torch.randn(3, 64)] * 3)
    plan = memlab.plan_of(model)
    assert plan.device == "cpu" and plan.devices == [plan] and "hops" not in plan.counters


@pytest.mark.parametrize(
    ("devices", "options", "message"),
    [
        (["cpu:0", "cpu:0"], {}, "cpu:0 is there twice"),
        ([], {}, "must be a device"),
        (TWO, {"budget": ["1MiB"]}, "one for each of the 2 devices"),
        (TWO, {"budget": {"cpu:3": "1MiB"}}, "budget names cpu:3"),
        (TWO, {"micro_batch": 2}, "give one device"),
        (TWO, {"budget": ["1MiB", "much"]}, "much"),
    ],
)
def test_wrong_arguments(devices, options, message):
    model = mlp()
    with pytest.raises(ValueError, match=message):
        spread(model, devices, **options)
    assert "forward" not in vars(model)


def test_tensors_that_are_no_plain_memory_are_refused():
    model = mlp()
    model[2].register_buffer("mask", torch.eye(64).to_sparse())
    with pytest.raises(ValueError, match=r"2.mask is no plain memory .* page the model to one device"):
        spread(model)
    assert "forward" not in vars(model)


def test_a_model_without_weights_is_refused():
    with pytest.raises(ValueError, match="no weights to page"):
        spread(nn.ReLU())


def test_weights_that_all_train_are_refused():
    # GIVEN a model on two devices, all of which requires gradients
    _, model = pair(mlp())
    # THEN a forward with gradients is refused as on one device
    with pytest.raises(RuntimeError, match=r"torch.no_grad\(\)|inference_mode"):
        model(torch.randn(3, 64))


def test_shared_with_other_processes():
    # GIVEN a model over two devices whose weights other processes may share
    name = f"host:devices-{os.getpid()}"
    twin, model = pair(mlp().requires_grad_(False), shared=name, budget="40KiB")
    x = torch.randn(3, 64)
    assert torch.equal(run(model, x)[0], run(twin, x)[0])
    # THEN another process that pages it has the same memory
    plan = memlab.plan_of(model)
    other = spread(copy.deepcopy(twin), shared=name)
    assert plan.shared_bytes == plan.host_bytes and plan.sharing == 2
    assert torch.equal(run(other, *[x] * 4)[3], run(twin, x)[0])


def test_load_and_chunk_take_one_device(tmp_path):
    model = mlp()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    for attempt in (lambda: memlab.load(tmp_path, model, TWO), lambda: memlab.chunk(model, TWO)):
        with pytest.raises(ValueError, match=r"only memlab.page takes several devices"):
            attempt()


def test_copies_and_pickles_are_ordinary_models():
    # GIVEN a model at each stage, with its first and last layer tied
    twin = tied()
    model = spread(copy.deepcopy(twin), max_layer_size=1)
    words = torch.randint(0, 50, (2, 30))
    for _ in range(4):
        run(model, words)
        for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            # THEN its copies are unpaged, with their own ties
            assert "forward" not in vars(copied[0]) and copied[0].weight is copied[5].weight
            assert copied[0].weight is not model[0].weight
            assert torch.equal(run(copied, words)[0], run(twin, words)[0])
            with pytest.raises(RuntimeError, match="not paged"):
                memlab.plan_of(copied)


def test_unpaged_it_is_an_ordinary_model():
    # GIVEN a model on two devices that was edited
    twin, model, words = tied_pair(on_change="upload")
    with torch.no_grad():
        for one in (twin, model):
            one[0].weight.mul_(2)
    run(model, words)
    # WHEN it is unpaged
    assert memlab.unpage(model) is model
    # THEN it has the edits, its ties, and can be moved, trained and paged again
    assert model[0].weight is model[5].weight and torch.equal(model[0].weight, twin[0].weight)
    assert torch.equal(run(model, words)[0], run(twin, words)[0])
    for one in (twin, model):
        optimizer = torch.optim.SGD(one.parameters(), 0.1)
        one(words).square().sum().backward()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(twin.parameters(), model.parameters(), strict=True))
    model.requires_grad_(False)
    assert torch.equal(run(spread(model), *[words] * 4)[3], run(twin, words)[0])


def test_state_dict_in_a_forward():
    # GIVEN a model whose weights are on two devices, in a forward
    twin, model = pair(mlp(), budget="40KiB")
    seen = []
    model[4].register_forward_hook(lambda *_: seen.append({k: v.clone() for k, v in model.state_dict().items()}))
    run(model, torch.randn(3, 64))
    # THEN its state has the true values
    (state,) = seen
    assert all(torch.equal(state[key], value) for key, value in twin.state_dict().items())


def test_unpage_in_a_forward_is_refused():
    _, model = pair(mlp())
    model[4].register_forward_hook(lambda *_: memlab.unpage(model))
    with pytest.raises(RuntimeError, match="a forward of this model is under way"):
        run(model, torch.randn(3, 64))


def test_a_forked_child():
    # GIVEN a child without its parent's threads
    twin, model = pair(mlp(), budget="40KiB")
    x = torch.randn(3, 64)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            try:
                run(model, x)
            except RuntimeError as error:
                code = 0 if "forked" in str(error) else 2
            # THEN the error explains it, and the child can continue unpaged
            code = code or (0 if torch.equal(run(memlab.unpage(model), x)[0], run(twin, x)[0]) else 3)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    # AND its parent continues
    assert torch.equal(run(model, x)[0], run(twin, x)[0])


def test_the_plan_as_text():
    _, model = pair(mlp(), budget="40KiB")
    plan = memlab.plan_of(model)
    assert str(plan).startswith("paged on cpu:0, cpu:1: settled")
    assert [str(part).splitlines()[0] for part in plan.devices] == ["paged on cpu:0: settled", "paged on cpu:1: settled"]
