"""Paged models compute what they compute unpaged, to the last bit, whatever they are made of and is done to them."""

import copy
import gc
import io
import pickle
import threading
import weakref

import memlab
import pytest
import torch
from memlab._paging.plan_state import SMALL_BUFFERS, WRITTEN
from paging.zoo import ZOO, build, call
from torch import nn
from torch.utils._pytree import tree_flatten

WAYS = {
    "default": {},
    "min": {"budget": "min"},
    "leaves": {"budget": "min", "max_layer_size": 1},
    "layers": {"max_layer_size": 40_000},
    "on-demand": {"budget": "min", "prefetch": 0},
    "between": {"budget": "between"},
    "all": {"budget": "1GiB"},
}


@pytest.fixture(autouse=True)
def small_units(monkeypatch):
    # Two test programs at a time on a small machine: threads of their own would only be in each other's way.
    torch.set_num_threads(1)
    # The models here are small: units of a few layers, as large models have them.
    monkeypatch.setattr("memlab._paging.units.SMALL_UNIT", 64 << 10)
    monkeypatch.setattr("memlab._paging.units.SMALL_SHARED", 4 << 10)
    monkeypatch.setattr("memlab._paging.collect.SMALL_BUFFER", 64 << 10)


def paged(model, **options):
    return memlab.page(model, device="cpu", **options)


def between(model, inputs):
    """A budget half way from the least that a model runs in to all of it."""
    paged(model, budget="min")
    for one in inputs:
        call(model, one)
    return (memlab.plan_of(model).device_bytes + memlab.plan_of(model).host_bytes) // 2


def same(one, other):
    """Whether two results are equal to the last bit, whatever they are made of."""
    ours, shape = tree_flatten(one)
    theirs, other_shape = tree_flatten(other)
    assert shape == other_shape
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else type(a) is type(b)
    return True


def mlp(width=64, depth=6):
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(depth))).eval()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ZOO)
def test_zoo(name, way):
    # GIVEN a model, and what it computes for five inputs in a row
    torch.manual_seed(1)
    inputs = [ZOO[name].inputs() for _ in range(5)]
    twin, model = build(name), build(name)
    model.load_state_dict(twin.state_dict())
    expected = [call(twin, one) for one in inputs]
    keys = {key: value.clone() for key, value in twin.state_dict().items()}
    before = [(name, id(parameter)) for name, parameter in model.named_parameters()]
    # WHEN it is paged
    options = dict(WAYS[way])
    if way == "between":
        options["budget"] = between(copy.deepcopy(twin), inputs)
    assert paged(model, **options) is model
    # THEN it computes the same: traced, timed, and from then on
    for one, wanted in zip(inputs, expected, strict=True):
        assert same(call(model, one), wanted)
    assert memlab.plan_of(model).stage == "settled"
    # AND all of it is paged, whether it would train or is frozen
    assert memlab.plan_of(model).kept.keys() <= {SMALL_BUFFERS, WRITTEN}
    # AND is the same model: Parameters, and what it would save
    assert [(name, id(parameter)) for name, parameter in model.named_parameters()] == before
    state = model.state_dict()
    assert list(state) == list(keys) and all(torch.equal(state[key], keys[key]) for key in keys)
    # AND unpaged it is an ordinary one
    assert memlab.unpage(model) is model
    assert same(call(model, inputs[0]), call(twin, inputs[0]))
    assert "forward" not in vars(model) and type(vars(model)["_parameters"]) is dict


def test_generate_with_a_cache():
    # GIVEN a language model that generates, one token after the other with a cache
    torch.manual_seed(0)
    prompt = torch.randint(0, 50, (2, 5))
    for name in ("gpt2", "llama", "t5"):
        twin, model = build(name), build(name)
        model.load_state_dict(twin.state_dict())
        settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
        expected = twin.generate(prompt, **settings)
        # WHEN it is paged, THEN it says the same
        paged(model, budget="min")
        for _ in range(2):
            assert torch.equal(model.generate(prompt, **settings), expected), name
    # AND a decoder that goes on from an encoder is prefetched, once that was seen
    assert memlab.plan_of(model).counters["on_demand"] < memlab.plan_of(model).counters["copies"]


def test_copies_happen_as_planned():
    # GIVEN a model of six layers under a budget of two
    model = paged(mlp(), budget="min", max_layer_size=1)
    x = torch.randn(3, 64)
    for _ in range(3):
        call(model, (x,))
    before = model.memlab.counters
    # WHEN it runs on
    for _ in range(10):
        call(model, (x,))
    # THEN each weight has come once per forward, none late, none out of order
    after = model.memlab.counters
    layer = 64 * 64 * 4 + 512  # Its weight, and its bias rounded up.
    assert after["copied_bytes"] - before["copied_bytes"] == 10 * 6 * layer == 10 * model.memlab.streamed_bytes
    assert after["on_demand"] == before["on_demand"]
    assert after["out_of_order"] == 0
    # AND the memory is that of two
    assert model.memlab.ring_bytes == 2 * layer and model.memlab.resident_bytes == 0
    assert len(model.memlab.units) == 6


def test_a_model_that_fits():
    # GIVEN a model smaller than the budget
    model = paged(mlp(), budget="1GiB")
    x = torch.randn(3, 64)
    for _ in range(3):
        call(model, (x,))
    copies = model.memlab.counters["copies"]
    # WHEN it runs, THEN nothing is copied any more
    for _ in range(5):
        call(model, (x,))
    assert model.memlab.counters["copies"] == copies and model.memlab.counters["reloads"] == 0
    assert model.memlab.streamed_bytes == 0 and all(unit.resident for unit in model.memlab.units)


def test_a_budget_too_small():
    # GIVEN a model whose largest layer is 16.5 KiB
    model = mlp()
    # WHEN it is to run in less, THEN that is refused, with what is needed, and the model is untouched
    with pytest.raises(ValueError, match=r"budget of 1\.00 KiB is too small.*16\.0 KiB"):
        paged(model, budget="1KiB")
    assert "forward" not in vars(model)

    # AND where one forward needs more at once than the largest weight, the first forward says so
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Parameter(torch.randn(64, 64)), nn.Parameter(torch.randn(64, 64))

        def forward(self, x):
            return x @ self.one @ self.other

    model = paged(Both(), budget="20KiB")
    with pytest.raises(ValueError, match=r"32\.0 KiB"):
        call(model, (torch.randn(2, 64),))


def test_edits_between_forwards():
    x = torch.randn(3, 64)
    edits = {
        "in place": lambda layer: layer.weight.mul_(2),
        "data": lambda layer: layer.weight.data.mul_(2),
        "data, as adapters are merged": lambda layer: setattr(layer.weight, "data", layer.weight.data * 2),
        "load_state_dict": lambda layer: layer.load_state_dict({"weight": layer.weight * 2, "bias": layer.bias}),
        "copy_": lambda layer: dict(layer.named_parameters())["weight"].copy_(layer.weight * 2),
        "another Parameter": lambda layer: setattr(layer, "weight", nn.Parameter(layer.weight * 2)),
    }
    for budget in ("min", "1GiB"):
        for what, edit in edits.items():
            twin = mlp()
            model = paged(copy.deepcopy(twin), budget=budget, on_change="upload")
            for _ in range(3):
                assert same(call(model, (x,)), call(twin, (x,)))
            # WHEN weights of any layer are edited, THEN the next forward computes with them
            for layer in (0, 3, 5):
                with torch.no_grad():
                    edit(model[layer])
                    edit(twin[layer])
                assert same(call(model, (x,)), call(twin, (x,))), (budget, what, layer)
            memlab.unpage(model)
            assert same(call(model, (x,)), call(twin, (x,))), (budget, what)


def test_edits_refused():
    x = torch.randn(3, 64)
    for budget in ("min", "1GiB"):
        # GIVEN a paged model under the default policy
        twin = mlp()
        model = paged(copy.deepcopy(twin), budget=budget)
        for _ in range(3):
            call(model, (x,))
        # WHEN a weight is edited in place, THEN the next forward refuses, and names it
        with torch.no_grad():
            model[2].weight.mul_(2)
            twin[2].weight.mul_(2)
        with pytest.raises(RuntimeError, match=r"2\.weight changed.*on_change"):
            call(model, (x,))
        with pytest.raises(RuntimeError, match=r"2\.weight"):
            call(model, (x,))
        # AND goes on once the edit is accepted
        model.memlab.refresh()
        assert same(call(model, (x,)), call(twin, (x,)))


def test_exceptions_in_the_middle():
    # GIVEN a paged model whose fourth layer fails now and then
    twin = mlp()
    model = paged(copy.deepcopy(twin), budget="min", max_layer_size=1)
    x = torch.randn(3, 64)
    fails = [False]

    def fail(module, args):
        if fails[0]:
            raise KeyError("failed")

    model[3].register_forward_pre_hook(fail)
    for stage in range(6):
        fails[0] = True
        with pytest.raises(KeyError):
            call(model, (x,))
        # WHEN it goes on, THEN the next forward is right
        fails[0] = False
        assert same(call(model, (x,)), call(twin, (x,))), stage


def test_hooks_see_what_they_saw():
    # GIVEN hooks of every kind, that look at inputs, results and weights
    def with_hooks(model):
        seen = []
        model[1].register_forward_pre_hook(lambda m, args: seen.append(args[0].sum()))
        model[2].register_forward_hook(lambda m, args, out: out + 1)
        model[3].register_forward_hook(lambda m, args, kwargs, out: seen.append(m.weight.sum()), with_kwargs=True)
        return seen

    twin, model = mlp(), mlp()
    model.load_state_dict(twin.state_dict())
    theirs, ours = with_hooks(twin), with_hooks(model)
    paged(model, budget="min", max_layer_size=1)
    x = torch.randn(3, 64)
    for _ in range(4):
        assert same(call(model, (x,)), call(twin, (x,)))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)) and len(ours) == 8


def test_two_threads_and_more():
    # GIVEN one paged model in a ring of two layers, and several threads
    twin = mlp(depth=8)
    model = paged(copy.deepcopy(twin), budget="min", max_layer_size=1)
    wrong = []

    def work(seed):
        x = torch.randn(3, 64, generator=torch.Generator().manual_seed(seed))
        wanted = call(twin, (x,))
        for _ in range(60):
            if not torch.equal(call(model, (x,)), wanted):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    # THEN each gets its own result, and none waits for ever
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_training_is_refused_unless_frozen():
    model = paged(mlp(), budget="min", max_layer_size=1)
    # GIVEN a paged model whose weights would train, THEN it refuses in words
    with pytest.raises(RuntimeError, match=r"does not train.*no_grad"):
        model(torch.randn(3, 64))
    memlab.unpage(model)
    # GIVEN the same, frozen, and something before and after it that trains
    twin = copy.deepcopy(model).requires_grad_(False)
    model = paged(model.requires_grad_(False), budget="min", max_layer_size=1)
    for _ in range(4):
        x = torch.randn(3, 64, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        # WHEN gradients go back through it, THEN they are what they were
        model(x).square().sum().backward()
        twin(y).square().sum().backward()
        assert torch.equal(x.grad, y.grad)


class LoRA(nn.Module):
    def __init__(self, base, rank=4):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / 8)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + x @ self.a.t() @ self.b.t()


def test_adapters_train_over_a_paged_base():
    # GIVEN a frozen base with adapters that train
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


def test_copies_and_pickles_are_ordinary_models(tmp_path):
    x = torch.randn(3, 64)
    model = paged(mlp(), budget="min", max_layer_size=1)
    model.note = "kept"
    for stage in range(4):
        wanted = call(model, (x,))
        torch.save(model, tmp_path / "model.pt")
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)]
        copies.append(torch.load(tmp_path / "model.pt", weights_only=False))
        for index, one in enumerate(copies):
            # THEN a copy computes the same and knows nothing of memlab
            assert one.note == "kept"
            if index != 2:
                assert "memlab" not in vars(one) and "forward" not in vars(one[0]) and "_apply" not in vars(one)
                assert type(one[0]._parameters) is dict
                assert same(call(one, (x,)), wanted), stage
        # AND what is saved of one layer is one layer
        saved = io.BytesIO()
        torch.save(model[0].state_dict(), saved)
        assert saved.tell() < 3 * 64 * 64 * 4


def test_round_trip_of_state():
    # GIVEN two models of different weights
    one, other = mlp(), mlp()
    x = torch.randn(3, 64)
    wanted = call(other, (x,))
    model = paged(one, budget="min", on_change="upload")
    for _ in range(3):
        call(model, (x,))
    # WHEN the paged one is given the other's state, THEN it is the other
    model.load_state_dict(other.state_dict())
    assert same(call(model, (x,)), wanted)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


def test_layers_called_by_themselves():
    # GIVEN a paged model of which some layers stay, some come and go, and one was never used
    twin = mlp()
    for budget in ("min", "1GiB"):
        model = paged(copy.deepcopy(twin), budget=budget, max_layer_size=1)
        x = torch.randn(3, 64)
        for _ in range(4):
            # WHEN single layers are called, THEN they compute what they did, and so does the model
            for layer in (4, 1, 1, 5):
                assert same(call(model[layer], (x,)), call(twin[layer], (x,)))
            assert same(call(model, (x,)), call(twin, (x,)))


def test_made_in_inference_mode():
    with torch.inference_mode():
        twin = mlp()
        model = paged(copy.deepcopy(twin), budget="min", max_layer_size=1)
        for _ in range(4):
            x = torch.randn(3, 64)
            assert same(model(x), twin(x))
        memlab.unpage(model)
        assert same(model(x), twin(x))


def test_what_cannot_be_done_is_said():
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


def test_micro_batches():
    # GIVEN a model of blocks, and a batch that goes through them in pieces
    for name, batch in (("encoder", (6, 9, 64)), ("resnet101", (6, 3, 64, 64))):
        twin, model = build(name), build(name)
        model.load_state_dict(twin.state_dict())
        paged(model, micro_batch=2)
        for _ in range(4):
            x = torch.randn(batch)
            # THEN the results are those of the whole batch, as far as kernels compute the same for other shapes
            torch.testing.assert_close(call(model, (x,)), call(twin, (x,)))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled(backend):
    # GIVEN a paged model that is compiled (its blocks are, between the points where weights are exchanged)
    twin = nn.Sequential(*(nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)) for _ in range(3))).eval()
    model = paged(copy.deepcopy(twin), budget="min", max_layer_size=1)
    compiled = torch.compile(model, backend=backend)
    for _ in range(5):
        x = torch.randn(3, 64)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), twin(x))
    assert model.memlab.stage == "settled"


def test_autocast_and_inference_mode():
    twin = mlp()
    model = paged(copy.deepcopy(twin), budget="min", max_layer_size=1)
    x = torch.randn(3, 64)
    for _ in range(4):
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            assert same(model(x), twin(x))
    with torch.inference_mode():
        assert same(model(x), twin(x))
    assert same(call(model, (x,)), call(twin, (x,)))


def test_nothing_is_left_behind():
    # GIVEN a paged model that was used
    model = paged(mlp(), budget="min")
    x = torch.randn(3, 64)
    for _ in range(3):
        call(model, (x,))
    gone = [weakref.ref(model), weakref.ref(model[0].weight)]
    # WHEN it goes, THEN all of it goes
    del model
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_rows_of_embeddings():
    # GIVEN a table of which a forward reads a few rows
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(20_000, 64)
            self.layer = nn.Linear(64, 64)

        def forward(self, ids):
            return self.layer(self.table(ids))

    twin = Words()
    model = paged(copy.deepcopy(twin), budget="min")
    for _ in range(4):
        ids = torch.randint(0, 20_000, (2, 7))
        assert same(call(model, (ids,)), call(twin, (ids,)))
    # THEN the table is never copied
    assert model.memlab.gathered_bytes == 20_000 * 64 * 4
    assert model.memlab.streamed_bytes + model.memlab.resident_bytes <= 2 * (64 * 64 * 4 + 512)


def test_a_branch_not_taken_before():
    # GIVEN a model that has gone one way only
    animal = ZOO["branches"]
    twin, model = build("branches"), build("branches")
    model.load_state_dict(twin.state_dict())
    paged(model, budget="min", max_layer_size=1)
    for way in "aaaabbabccca":
        inputs = animal.inputs() | {"way": way}
        # WHEN it goes another, THEN that is right too
        assert same(call(model, inputs), call(twin, inputs)), way
    # AND was counted
    assert model.memlab.counters["on_demand"] > 0


def test_the_plan_as_text():
    model = paged(mlp(), budget="min", max_layer_size=1)
    assert "first forward" in str(model.memlab)
    for _ in range(4):
        call(model, (torch.randn(3, 64),))
    text = str(model.memlab)
    for part in ("settled", "ring", "GB/s", "predicted", "achieved", "\n  0 ", "16.5 KiB"):
        assert part in text, text
    assert model.memlab.predicted_ms > 0 and model.memlab.achieved_ms > 0 and model.memlab.gigabytes_per_second > 0
