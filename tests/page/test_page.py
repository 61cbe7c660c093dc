"""Paged models are bit-identical to unpaged ones, and the copies follow the plan."""

import copy
import gc
import itertools
import threading
import weakref

import memlab
import pytest
import torch
import torch.nn.functional as F
from memlab import _native
from memlab._paging import clock
from memlab._paging.device_pool import DevicePool
from memlab._paging.plan_state import SMALL_BUFFERS, WRITTEN
from paging.small import Words, between, mlp, paged, pair, same, small_units  # noqa: F401 (a fixture)
from paging.zoo import ZOO, build, call
from torch import nn
from waiting import HANG_SECONDS

WAYS = {
    "default": {},
    "min": {"budget": "min"},
    "leaves": {"budget": "min", "max_layer_size": 1},
    "layers": {"max_layer_size": 40_000},
    "on-demand": {"budget": "min", "prefetch": 0},
    "between": {"budget": "between"},
    "all": {"budget": "1GiB"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ZOO)
def test_zoo(name, way):
    # GIVEN a model, and its results for five inputs in a row
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
    # THEN its results are the same: traced, timed, and afterwards
    for one, result in zip(inputs, expected, strict=True):
        assert same(call(model, one), result)
    assert memlab.plan_of(model).stage == "settled"
    # AND all of it is paged, trainable or frozen
    assert memlab.plan_of(model).kept.keys() <= {SMALL_BUFFERS, WRITTEN}
    # AND it is the same model: the same Parameters and state dict
    assert [(name, id(parameter)) for name, parameter in model.named_parameters()] == before
    state = model.state_dict()
    assert list(state) == list(keys) and all(torch.equal(state[key], keys[key]) for key in keys)
    # AND unpaged it is an ordinary model
    assert memlab.unpage(model) is model
    assert same(call(model, inputs[0]), call(twin, inputs[0]))
    assert "forward" not in vars(model) and type(vars(model)["_parameters"]) is dict


def test_generate_with_a_cache():
    # GIVEN a language model that generates token by token with a cache
    torch.manual_seed(0)
    prompt = torch.randint(0, 50, (2, 5))
    for name in ("gpt2", "llama", "t5"):
        twin, model = build(name), build(name)
        model.load_state_dict(twin.state_dict())
        settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
        expected = twin.generate(prompt, **settings)
        # WHEN it is paged, THEN its output is the same
        paged(model, budget="min")
        for _ in range(2):
            assert torch.equal(model.generate(prompt, **settings), expected), name
    # AND a decoder after an encoder is prefetched once it was traced
    assert memlab.plan_of(model).counters["on_demand"] < memlab.plan_of(model).counters["copies"]


def test_copies_happen_as_planned(monkeypatch):
    # GIVEN a model of six layers under a budget of two, with enough compute to hide the copies
    monkeypatch.setattr(_native, "Pipeline", TimedPipeline)
    monkeypatch.setattr(TimedPipeline, "nanoseconds", SLOW)
    model = paged(mlp(), budget="min", max_layer_size=1)
    x = torch.randn(3, 64)
    for _ in range(3):
        call(model, (x,))
    before = model.memlab.counters
    # WHEN it continues to run
    for _ in range(10):
        call(model, (x,))
    # THEN each weight is copied once per forward, none late, none out of order
    after = model.memlab.counters
    layer = 64 * 64 * 4 + 512  # the weight, and the bias rounded up
    assert after["copied_bytes"] - before["copied_bytes"] == 10 * 6 * layer == 10 * model.memlab.streamed_bytes
    assert after["on_demand"] == before["on_demand"]
    assert after["out_of_order"] == 0
    # AND the memory is that of two layers
    assert model.memlab.ring_bytes == 2 * layer and model.memlab.resident_bytes == 0
    assert len(model.memlab.units) == 6


def test_a_model_that_fits():
    # GIVEN a model smaller than the budget
    model = paged(mlp(), budget="1GiB")
    x = torch.randn(3, 64)
    for _ in range(3):
        call(model, (x,))
    copies = model.memlab.counters["copies"]
    # WHEN it runs, THEN nothing is copied after the first forwards
    for _ in range(5):
        call(model, (x,))
    assert model.memlab.counters["copies"] == copies and model.memlab.counters["reloads"] == 0
    assert model.memlab.streamed_bytes == 0 and all(unit.resident for unit in model.memlab.units)


def test_a_budget_too_small():
    # GIVEN a model whose largest layer is 16.5 KiB
    model = mlp()
    # WHEN the budget is smaller, THEN it is refused with the required size, and the model is unchanged
    with pytest.raises(ValueError, match=r"budget of 1\.00 KiB is too small.*16\.0 KiB"):
        paged(model, budget="1KiB")
    assert "forward" not in vars(model)

    # AND if one forward needs more at once than the largest weight, the first forward raises that error
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Parameter(torch.randn(64, 64)), nn.Parameter(torch.randn(64, 64))

        def forward(self, x):
            return x @ self.one @ self.other

    model = paged(Both(), budget="20KiB")
    with pytest.raises(ValueError, match=r"32\.0 KiB"):
        call(model, (torch.randn(2, 64),))


def buffered():
    """Six layers of 16.5 KiB, and a buffer of 32 KiB, which stays on the device."""
    model = mlp()
    model.register_buffer("table", torch.ones(128, 64))
    return model


def test_buffers_count_for_the_budget():
    # GIVEN a budget for a buffer and three layers
    model = paged(buffered(), budget="82KiB", max_layer_size=1)
    for _ in range(3):
        call(model, (torch.ones(3, 64),))
    # THEN weights use the rest of the budget
    plan = model.memlab
    assert plan.kept == {SMALL_BUFFERS: 32 << 10}
    assert plan.ring_bytes + plan.resident_bytes == 3 * (64 * 64 * 4 + 512)
    assert plan.device_bytes <= 82 << 10
    # AND the error names the buffers if no layer fits beside them, or if the buffers themselves do not fit
    for budget, said in (
        ("48KiB", r"takes 16\.5 KiB, and weights may take 16\.0 KiB"),
        ("20KiB", r"buffers, takes 32\.0 KiB"),
    ):
        with pytest.raises(ValueError, match=rf"budget of {budget[:2]}\.0 KiB is too small: .*{said}"):
            call(paged(buffered(), budget=budget, max_layer_size=1), (torch.ones(3, 64),))


def test_rows_of_embeddings():
    # GIVEN a table of which a forward reads a few rows
    twin = Words()
    model = paged(copy.deepcopy(twin), budget="min")
    for _ in range(4):
        ids = torch.randint(0, 20_000, (2, 7))
        assert same(call(model, (ids,)), call(twin, (ids,)))
    # THEN the table is never copied
    assert model.memlab.gathered_bytes == 20_000 * 64 * 4
    assert model.memlab.streamed_bytes + model.memlab.resident_bytes <= 2 * (64 * 64 * 4 + 512)


def test_a_branch_not_taken_before():
    # GIVEN a model that has taken only one branch
    entry = ZOO["branches"]
    twin, model = build("branches"), build("branches")
    model.load_state_dict(twin.state_dict())
    paged(model, budget="min", max_layer_size=1)
    for way in "aaaabbabccca":
        inputs = entry.inputs() | {"way": way}
        # WHEN it takes another, THEN the results are right
        assert same(call(model, inputs), call(twin, inputs)), way
    # AND the on-demand copies are counted
    assert model.memlab.counters["on_demand"] > 0


@pytest.mark.parametrize("order", ["aaabab", "abbbab"])
def test_weights_of_one_module_that_were_not_used_before(order):
    # GIVEN modules with two weights each, of which a forward uses one
    class Choosing(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.randn(64, 64)), nn.Parameter(torch.randn(64, 64))

        def forward(self, x, which):
            return x @ getattr(self, which) / 8

    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Choosing() for _ in range(6))

        def forward(self, x, which):
            for layer in self.layers:
                x = layer(x, which)
            return x

    twin, model = pair(Layers())
    # THEN both are loaded together if the room suffices, and the results are right
    x = torch.randn(3, 64)
    with torch.no_grad():
        for which in order:
            assert torch.equal(model(x, which), twin(x, which)), which


def test_layers_called_by_themselves():
    # GIVEN a paged model with resident layers, streamed layers, and one that was never used
    twin = mlp()
    for budget in ("min", "1GiB"):
        model = paged(copy.deepcopy(twin), budget=budget, max_layer_size=1)
        x = torch.randn(3, 64)
        for _ in range(4):
            # WHEN single layers are called, THEN their results are the same, and so are the model's
            for layer in (4, 1, 1, 5):
                assert same(call(model[layer], (x,)), call(twin[layer], (x,)))
            assert same(call(model, (x,)), call(twin, (x,)))


def test_hooks_see_the_same_values():
    # GIVEN hooks of every kind that read inputs, results and weights
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


def test_exceptions_in_the_middle():
    # GIVEN a paged model whose fourth layer sometimes fails
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
        # WHEN it continues, THEN the next forward is right
        fails[0] = False
        assert same(call(model, (x,)), call(twin, (x,))), stage


def test_threads():
    # GIVEN one paged model in a ring of two layers, and several threads
    twin = mlp(depth=8)
    model = paged(copy.deepcopy(twin), budget="min", max_layer_size=1)
    wrong = []

    def work(seed):
        x = torch.randn(3, 64, generator=torch.Generator().manual_seed(seed))
        expected = call(twin, (x,))
        for _ in range(60):
            if not torch.equal(call(model, (x,)), expected):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    # THEN each gets its own result, and none waits forever
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


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


def test_weights_are_found_in_inference_mode():
    # GIVEN operations that the tracer does not see decomposed in inference mode
    class Casting(nn.Linear):
        def forward(self, x):
            return F.linear(x, self.weight.to(torch.bfloat16))

    twin, model = pair(nn.Sequential(*(Casting(64, 64, bias=False) for _ in range(5))))
    for _ in range(4):
        with torch.inference_mode():
            x = torch.randn(2, 64).bfloat16()
            assert same(model(x), twin(x))
    # THEN the weights are found and paged
    assert [unit.nbytes for unit in model.memlab.units] == [64 * 64 * 4] * 5 and model.memlab.counters["copies"] > 0


def test_made_in_inference_mode():
    with torch.inference_mode():
        twin = mlp()
        model = paged(copy.deepcopy(twin), budget="min", max_layer_size=1)
        for _ in range(4):
            x = torch.randn(3, 64)
            assert same(model(x), twin(x))
        memlab.unpage(model)
        assert same(model(x), twin(x))


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


def test_deleting_a_model_frees_everything():
    # GIVEN a paged model that was used
    model = paged(mlp(), budget="min")
    x = torch.randn(3, 64)
    for _ in range(3):
        call(model, (x,))
    gone = [weakref.ref(model), weakref.ref(model[0].weight)]
    # WHEN it is deleted, THEN all of its memory is freed
    del model
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


@pytest.mark.parametrize("way", ["page", "chunk"])
def test_paging_again(way):
    # GIVEN a model that is paged, unpaged, and paged again
    twin = mlp()
    model = copy.deepcopy(twin)
    x = (torch.randn(2, 64),)
    for budget in ("1GiB", "60KiB", "1GiB", "40KiB"):
        if way == "page":
            paged(model, budget=budget, max_layer_size=1)
        else:
            memlab.chunk(model, "cpu", budget, rest="page")
        for _ in range(4):
            assert same(call(model, x), call(twin, x))
        # THEN nothing left by the first paging causes reloads
        assert model.memlab.counters["reloads"] == 0
        memlab.unpage(model)
        assert same(call(model, x), call(twin, x))


class TimedPipeline:
    """A pipeline that reports `nanoseconds` as the compute time of each point, and a copy bandwidth of 1 GB/s."""

    nanoseconds = 0
    was_captured = False

    def __init__(self, *arguments):
        self.pipeline = PIPELINE(*arguments)

    def __getattr__(self, name):
        return getattr(self.pipeline, name)

    def timings(self):
        return [self.nanoseconds] * len(self.pipeline.timings())

    def bandwidth(self, *_):
        return 1e9

    def captured(self):
        return self.was_captured


PIPELINE = _native.Pipeline
SLOW, QUICK = 10**9, 10**3  # Copies of 16.5 KiB take as long as 16 quick points.


@pytest.mark.parametrize(
    ("times", "samples", "is_planned_again"),
    [
        ([SLOW, QUICK], 3, True),
        ([SLOW, SLOW * 4 // 5], 3, False),
        ([QUICK, SLOW], 3, False),
        ([SLOW, QUICK], 2, False),
    ],
)
def test_a_forward_that_was_measured_slowly_by_chance(monkeypatch, times, samples, is_planned_again):
    # GIVEN a model whose second forward has a given measured time, and a plan for it
    monkeypatch.setattr(_native, "Pipeline", TimedPipeline)
    twin = mlp(depth=12)
    model = paged(copy.deepcopy(twin), max_layer_size=1)
    plans = []
    monkeypatch.setattr(TimedPipeline, "nanoseconds", times[0])
    for _ in range(2):
        assert same(call(model, (x := torch.randn(3, 64),)), call(twin, (x,)))
    plans.append(model.memlab.streamed_bytes)
    assert model.memlab.stage == "settled"
    # WHEN the third takes another time, with the same input or another
    monkeypatch.setattr(TimedPipeline, "nanoseconds", times[1])
    for _ in range(3):
        assert same(call(model, (x := torch.randn(samples, 64),)), call(twin, (x,)))
        plans.append(model.memlab.streamed_bytes)
    # THEN a far shorter time with the same input replans: fewer bytes are copied, because compute no longer hides them
    if is_planned_again:
        assert plans[1] < plans[0] // 2
    else:
        assert plans[1] == plans[0]
    # AND the plan stays the same from then on
    assert plans[1:] == [plans[1]] * 3


def planned_by_chance(monkeypatch):
    """A model with a plan from a slow forward, and its twin. The next forward is quick."""
    monkeypatch.setattr(_native, "Pipeline", TimedPipeline)
    twin = nn.Sequential(mlp(), mlp()).eval()
    model = paged(copy.deepcopy(twin), max_layer_size=1)
    monkeypatch.setattr(TimedPipeline, "nanoseconds", SLOW)
    for _ in range(2):
        call(model, (torch.randn(3, 64),))
    monkeypatch.setattr(TimedPipeline, "nanoseconds", QUICK)
    return twin, model


def test_no_other_plan_where_a_graph_has_the_addresses(monkeypatch):
    # GIVEN a model whose measured forward was slow by chance, with a part that was captured since
    twin, model = planned_by_chance(monkeypatch)
    monkeypatch.setattr(TimedPipeline, "was_captured", True)
    planned = model.memlab.streamed_bytes
    # WHEN the next forward is quick, THEN the plan stays
    for _ in range(3):
        assert same(call(model, (x := torch.randn(3, 64),)), call(twin, (x,)))
    assert model.memlab.streamed_bytes == planned


def test_no_other_plan_by_a_call_of_a_part(monkeypatch):
    # GIVEN a model whose measured forward was slow by chance
    twin, model = planned_by_chance(monkeypatch)
    planned = model.memlab.streamed_bytes
    # WHEN the next call runs only a part, with an input of the same size, THEN the plan stays
    assert same(call(model[0], (x := torch.randn(3, 64),)), call(twin[0], (x,)))
    assert same(call(model, (x,)), call(twin, (x,)))
    assert model.memlab.streamed_bytes == planned


def test_the_plan_stays_if_the_other_one_does_not_fit(monkeypatch):
    # GIVEN a model whose measured forward was slow by chance, and no memory for another plan
    twin, model = planned_by_chance(monkeypatch)
    planned, place = model.memlab.streamed_bytes, DevicePool.place
    failed = []

    def full(pool, units, placement, *rest):
        if placement.streamed_bytes < planned:
            failed.append(placement.streamed_bytes)
            raise torch.OutOfMemoryError("the program has taken it")
        place(pool, units, placement, *rest)

    monkeypatch.setattr(DevicePool, "place", full)
    # WHEN the next forward is quick, THEN it has its result, AND the plan stays
    for _ in range(3):
        assert same(call(model, (x := torch.randn(3, 64),)), call(twin, (x,)))
    assert len(failed) == 1
    assert model.memlab.streamed_bytes == planned


class TickingClock:
    """A clock that advances by 5 ms at each reading."""

    def __init__(self):
        self.readings = itertools.count(0, 5_000_000)

    def perf_counter_ns(self):
        return next(self.readings)


def test_the_plan_as_text(monkeypatch):
    # GIVEN a model of six layers with 1 ms of compute per point, and forwards of 5 ms
    monkeypatch.setattr(_native, "Pipeline", TimedPipeline)
    monkeypatch.setattr(TimedPipeline, "nanoseconds", 1_000_000)
    monkeypatch.setattr(clock, "time", TickingClock())
    model = paged(mlp(), budget="min", max_layer_size=1)
    assert "first forward" in str(model.memlab)
    # WHEN it is settled
    for _ in range(4):
        call(model, (torch.randn(3, 64),))
    # THEN its plan has these times, and the bytes that each forward copies, as numbers and as text
    plan, layer = model.memlab, 64 * 64 * 4 + 512
    assert (plan.predicted_ms, plan.achieved_ms) == (6.0, 5.0)
    assert plan.gigabytes_per_second == pytest.approx(6 * layer / 0.005 / 1e9)
    text = str(plan)
    assert text.startswith("paged on cpu: settled\n  ring          33.0 KiB  99.0 KiB come through it per forward\n")
    assert "  bus           1.0 GB/s\n" in text
    assert "  forward        6.00 ms  predicted (compute 6.00 ms, floor 6.00 ms), 5.00 ms achieved\n" in text
    assert "  0      16.5 KiB     1.00 ms  ring\n" in text
