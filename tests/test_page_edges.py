"""Paged models whose forwards, owners and neighbours do what is rarely done: never silently another result."""

import copy
import os
import threading

import memlab
import pytest
import torch
import torch.nn.functional as F
from test_page import call, mlp, paged, same, small_units  # noqa: F401 (a fixture)
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDE = (256, 64)  # 64 KiB: as large as a unit here.


def pair(model, **options):
    """A model and its paged copy."""
    return model.eval(), paged(copy.deepcopy(model).eval(), **{"budget": "min", "max_layer_size": 1} | options)


def behave_alike(twin, model, inputs):
    for one in inputs:
        assert same(call(model, one), call(twin, one))
    for (name, ours), theirs in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name


class Bank(nn.Module):
    """A large buffer that some forwards write to, others put another tensor in the place of."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.register_buffer("bank", torch.randn(WIDE))
        self.last = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))

    def forward(self, x, what):
        x = self.first(x)
        if what == "write":
            self.bank[: len(x)].copy_(x)
        if what == "assign":
            self.bank = self.bank * 0.5 + 1
        return self.last(x + self.bank[: len(x)] + self.bank.mean(0))


@pytest.mark.parametrize("first", ["read", "write", "assign"])
@pytest.mark.parametrize("budget", ["min", "1GiB"])
def test_buffers_that_forwards_change(budget, first):
    # GIVEN forwards that write to a buffer, exchange it, or only read it, in any order
    twin, model = pair(Bank(), budget=budget)
    order = [first, "read", "read", "read", "write", "read", "assign", "read", "write", "write", "assign", "assign", "read"]
    behave_alike(twin, model, [(torch.randn(3, 64), what) for what in order])


class Looking(nn.Module):
    """Views of weights that outlive the layer they belong to."""

    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.randn(WIDE))
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(5))
        self.memo = None

    def forward(self, x, way):
        if way == "remember" and self.memo is None:
            self.memo = self.layers[1].weight.t()
        here = self.positions[: len(x)]
        x = x + here
        for layer in self.layers:
            x = layer(x)
        if way == "late":
            x = x * here
        if way == "remember":
            x = x @ self.memo
        return x, self.positions[:2]


@pytest.mark.parametrize("first", ["plain", "late"])
def test_views_that_outlive_their_layer(first):
    # GIVEN a model that returns a view of a weight, and uses others long after
    twin, model = pair(Looking())
    results = []
    for way in [first, "plain", "plain", "late", "plain", "remember", "plain", "remember", "late"]:
        x = torch.randn(3, 64)
        try:
            ours = call(model, (x, way))
        except RuntimeError as refused:
            # THEN a forward that cannot be right, for nobody had foreseen it, says so, and the next one is
            assert "run this one again" in str(refused)
            model.memo = None
            ours = call(model, (x, way))
        theirs = call(twin, (x, way))
        results.append((ours, theirs))
        # AND results stay what they were, whatever is loaded later
        for one, other in results:
            assert same(one, other), way


class Handing(nn.Module):
    """A layer that hands out its weight itself."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64))

    def forward(self):
        return self.weight


class Handed(nn.Module):
    def __init__(self):
        super().__init__()
        self.handing = Handing()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(5))

    def forward(self, x):
        weight = self.handing()
        x = x @ weight
        for layer in self.layers:
            x = layer(x)
        return x, weight


def test_a_weight_handed_out():
    # GIVEN a layer that hands out its weight, which its caller keeps in a variable, and at last returns
    twin, model = pair(Handed())
    results = []
    for _ in range(8):
        x = torch.randn(3, 64)
        results.append((call(model, (x,)), call(twin, (x,))))
        for ours, theirs in results:
            assert same(ours, theirs)
    # AND what a failed forward held is not taken for a reason to keep anything
    resident = model.memlab.resident_bytes
    model.layers[2].register_forward_hook(lambda module, args, out: 1 / 0)
    for _ in range(4):
        with pytest.raises(ZeroDivisionError):
            call(model, (x,))
    assert model.memlab.resident_bytes == resident


def test_views_that_leave_no_room():
    # GIVEN results that are views of all weights in turn, under a budget that has room for few of them
    class All(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

        def forward(self, x, which):
            looked_at = None
            for index, layer in enumerate(self.layers):
                x = layer(x)
                if index == which:
                    looked_at = layer.weight[:3]
            return x, looked_at

    twin, model = pair(All(), budget="60KiB")
    results = []
    for which in [9, 9, 9, 0, 1, 2, 3, 4, 5, 9, 5, 3]:
        x = torch.randn(3, 64)
        for _ in range(3):
            try:
                results.append((call(model, (x, which)), call(twin, (x, which))))
                break
            except RuntimeError as refused:
                assert "run this one again" in str(refused)
        # THEN all of them stay right
        for ours, theirs in results:
            assert same(ours, theirs)


def test_state_in_the_middle_of_a_forward():
    # GIVEN hooks and a thread that save and copy the model while it runs
    twin, model = pair(mlp())
    wanted = twin.state_dict()
    seen = []

    def save(module, args):
        seen.append(copy.deepcopy(model).state_dict())
        seen.append(model.state_dict())

    model[3].register_forward_pre_hook(save)
    ends = threading.Event()

    def keep_saving():
        while not ends.is_set():
            seen.append({key: value.clone() for key, value in model.state_dict().items()})

    thread = threading.Thread(target=keep_saving)
    thread.start()
    for _ in range(30):
        x = (torch.randn(2, 64),)
        assert same(call(model, x), call(twin, x))
    ends.set()
    thread.join()
    # THEN each copy is whole
    assert len(seen) > 60
    assert all(torch.equal(state[key], wanted[key]) for state in seen for key in wanted)


@pytest.mark.parametrize("budget", ["min", "1GiB"])
def test_edits_through_references_kept_from_before(budget):
    # GIVEN references to weights that somebody has kept, as tensors, data and arrays
    twin, model = pair(mlp(), budget=budget)
    kept = [(list(one.parameters()), one[1].weight.data, one[2].weight.detach().numpy()) for one in (twin, model)]
    for turn in range(8):
        # WHEN weights are changed through them, which leaves no trace
        for parameters, data, array in kept:
            parameters[0].data.mul_(1.1)
            parameters[-2].data.add_(turn)
            data.mul_(0.9)
            array[:] += 0.1
        # THEN the next forward computes with what they are
        behave_alike(twin, model, [(torch.randn(2, 64),)])


def test_an_exchange_is_refused_until_it_is_undone():
    twin, model = pair(mlp())
    x = (torch.randn(2, 64),)
    for _ in range(3):
        call(model, x)
    old = model[2].weight
    model[2].weight = nn.Parameter(torch.randn(64, 64))
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"2\.weight was exchanged"):
            call(model, x)
    model[2].weight = old
    assert same(call(model, x), call(twin, x))


class OneMemory(nn.Module):
    """Tensors that look at one memory from several sides, one of them written."""

    def __init__(self):
        super().__init__()
        both = torch.randn(2, 256, 64)
        self.register_buffer("whole", both)
        self.register_buffer("part", both[0])
        self.register_buffer("small", both[1, 0])
        self.layer = nn.Linear(64, 64)
        self.other = nn.Linear(64, 64)

    def forward(self, x):
        self.whole.add_(1)
        return self.other(self.layer(x) + self.part[: len(x)] + self.small)


def test_tensors_of_one_memory():
    twin = OneMemory().eval()
    model = OneMemory().eval()
    model.load_state_dict(twin.state_dict())
    paged(model, budget="min", max_layer_size=1)
    behave_alike(twin, model, [(torch.randn(3, 64),) for _ in range(5)])


def test_gradients_where_they_are_rarely_asked_for():
    # GIVEN frozen paged blocks, run with gradient checkpointing
    twin, model = pair(mlp().requires_grad_(False))

    def gradient(one, x, way):
        x = x.clone().requires_grad_()
        if way == "checkpoint":
            y = checkpoint(one, checkpoint(one[2], x, use_reentrant=False), use_reentrant=False)
        else:
            # AND a model that asks for gradients in a forward without any
            with torch.no_grad(), torch.enable_grad():
                y = one(x)
            call(one, (x.detach(),))
        return torch.autograd.grad(y.square().sum(), x)[0]

    for way in ["checkpoint", "within"] * 4:
        x = torch.randn(2, 64)
        assert torch.equal(gradient(model, x, way), gradient(twin, x, way)), way
    # AND a weight that is edited before the backward is not silently another one
    y = model(x.requires_grad_()).sum()
    with torch.no_grad():
        model[3].weight.add_(1)
    with pytest.raises(RuntimeError, match=r"3\.weight was edited in place"):
        y.backward()


def test_a_model_made_in_inference_mode_trains_when_unpaged():
    # GIVEN parameters whose memory cannot be exchanged, so that others take their places
    with torch.inference_mode():
        model = mlp()
    paged(model, budget="min", max_layer_size=1)
    call(model, (torch.randn(2, 64),))
    # WHEN it is given back THEN they are ordinary ones
    memlab.unpage(model)(torch.randn(2, 64)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


class Inner(nn.Module):
    """Computes gradients in its forward, whoever calls it."""

    def __init__(self):
        super().__init__()
        self.layers = mlp()

    @torch.enable_grad()
    def forward(self, x):
        return self.layers(x)


def test_gradients_of_weights_asked_for_within_a_forward():
    # GIVEN a model that computes with gradients though it is called without
    model = paged(Inner().eval(), budget="min", max_layer_size=1)
    for _ in range(4):
        loss = call(model, (torch.randn(2, 64),)).square().sum()
        # THEN no gradient goes where nobody finds it
        with pytest.raises(RuntimeError, match=r"a gradient was asked for a weight.*freeze"):
            loss.backward()
    # AND one of its input is to be had
    for _ in range(2):
        x = torch.randn(2, 64, requires_grad=True)
        loss = call(model, (x,)).square().sum()
        assert torch.autograd.grad(loss, x)[0].abs().sum() > 0


def test_activations_with_gradients_written_to_a_buffer():
    # GIVEN a frozen model that keeps activations, through which gradients go, in a buffer
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


@pytest.mark.parametrize("when", range(5))
def test_weights_exchanged_at_any_time(when):
    # GIVEN a weight that is exchanged before the first forward, or between any two
    for on_change in ("error", "upload"):
        twin, model = pair(mlp(), on_change=on_change)
        for turn in range(6):
            if turn == when:
                new = torch.randn(64, 64)
                twin[2].weight, model[2].weight = nn.Parameter(new.clone()), nn.Parameter(new.clone())
            x = (torch.randn(2, 64),)
            if turn == when and on_change == "error":
                with pytest.raises(RuntimeError, match=r"2\.weight was exchanged"):
                    call(model, x)
                break
            # THEN it is used from then on, or refused
            assert same(call(model, x), call(twin, x))


@pytest.mark.parametrize("budget", ["min", "1GiB"])
@pytest.mark.parametrize("hold", [lambda w: w, lambda w: w.data, lambda w: w.detach().numpy()])
def test_edited_by_who_held_it_and_let_go(budget, hold):
    # GIVEN somebody who holds a weight during a forward, edits it without a trace, and lets go
    twin, model = pair(mlp(), budget=budget, on_change="upload")
    x = (torch.randn(2, 64),)
    for _ in range(3):
        call(model, x)
    held = [hold(one[2].weight) for one in (twin, model)]
    call(model, x)
    for one in held:
        (one.data if isinstance(one, torch.Tensor) else one)[:] *= 2
    del held, one
    # THEN the next forward uses the new value, and those after it
    for _ in range(3):
        assert same(call(model, x), call(twin, x))


def transpose_data(weight):
    weight.data = weight.data.t()


@pytest.mark.parametrize("edit", [transpose_data, torch.Tensor.t_])
@pytest.mark.parametrize("on_change", ["error", "upload"])
def test_other_strides_at_the_same_address(edit, on_change):
    _, model = pair(mlp(), on_change=on_change)
    x = (torch.randn(2, 64),)
    for _ in range(3):
        call(model, x)
    with torch.no_grad():
        edit(model[2].weight)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"2\.weight (changed|was .* with strides \(64, 1\))"):
            call(model, x)


def test_memory_that_somebody_keeps_is_not_overwritten():
    # GIVEN averaged weights tried out as is often done: the pointers exchanged, the former kept to go back to
    _, model = pair(mlp(), on_change="upload")
    x = (torch.randn(2, 64),)
    call(model, x)
    former, value = model[2].weight.data, model[2].weight.detach().clone()
    model[2].weight.data = torch.zeros(64, 64)
    # THEN that is refused, rather than the former weights lost
    with pytest.raises(RuntimeError, match=r"2\.weight was given other memory.*clone"):
        call(model, x)
    assert torch.equal(former, value)


@pytest.mark.parametrize("before", range(3))
def test_unpaged_in_the_middle_of_a_forward(before):
    twin, model = pair(mlp())
    x = (torch.randn(2, 64),)
    for _ in range(before):
        call(model, x)
    handle = model[2].register_forward_pre_hook(lambda *_: memlab.unpage(model))
    with pytest.raises(RuntimeError, match="a forward of this model is under way"):
        call(model, x)
    handle.remove()
    # THEN the model is as it was, and can be unpaged afterwards
    behave_alike(twin, model, [x] * 3)
    behave_alike(twin, memlab.unpage(model), [x])


class Telling(nn.Linear):
    """Says in its forwards whether its weight requires a gradient, as PyTorch's operations look at it to choose kernels."""

    def __init__(self):
        super().__init__(64, 64)
        self.told = []

    def forward(self, x):
        self.told.append(self.weight.requires_grad)
        return super().forward(x)


@pytest.mark.parametrize("budget", ["min", "1GiB"])
def test_what_requires_a_gradient_does_so_in_forwards(budget):
    # GIVEN a model that trains elsewhere, run without gradients, then frozen, then not
    model = paged(nn.Sequential(*(Telling() for _ in range(4))).eval(), budget=budget, max_layer_size=1)
    expected = []
    kept = model[2].weight
    for requires in [True, True, True, False, False, True, True]:
        model[1].requires_grad_(requires)
        kept.requires_grad_(requires)
        call(model, (torch.randn(2, 64),))
        expected.append(requires)
    # THEN its forwards see what they would see unpaged, each time
    assert model[1].told == model[2].told == expected and model[0].told == [True] * len(expected)


def test_copies_of_parametrized_models():
    # GIVEN a model whose copies PyTorch makes attribute by attribute
    twin = mlp()
    nn.utils.parametrizations.weight_norm(twin[1])
    twin, model = pair(twin)
    x = (torch.randn(2, 64),)
    for _ in range(4):
        assert same(call(model, x), call(twin, x))
        other = copy.deepcopy(model)
        # THEN a copy is another model
        with torch.no_grad():
            other[1].bias.add_(1)
        assert not torch.equal(call(other, x), call(model, x))
        other.double()


def test_a_forked_child():
    model = paged(mlp(), budget="min")
    x = (torch.randn(2, 64),)
    for _ in range(3):
        wanted = call(model, x)
    child = os.fork()
    if child == 0:
        # GIVEN a child that has none of its parent's threads, THEN it is told, and may go on unpaged
        code = 1
        try:
            try:
                call(model, x)
            except RuntimeError as error:
                code = 0 if "forked" in str(error) else 2
            code = code or (0 if torch.equal(call(memlab.unpage(model), x), wanted) else 3)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(call(model, x), wanted)


class Rows(nn.Module):
    """A table of as many rows as the batch has samples."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(RowsBlock() for _ in range(2))

    def forward(self, x, table):
        for block in self.blocks:
            x = block(x, table)
        return x


class RowsBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x, table):
        return self.layer(x) + table.sum(0)


def test_micro_batches_that_would_be_wrong():
    # GIVEN an argument that looks like a batch and is none
    model = paged(Rows().eval(), micro_batch=2)
    with pytest.raises(ValueError, match="RowsBlock does not give the same"):
        call(model, (torch.randn(4, 64), torch.randn(4, 64)))
    # AND normalization over the batch
    model = paged(nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), nn.Conv2d(8, 8, 3)), micro_batch=2)
    with pytest.raises(RuntimeError, match="BatchNorm in training"):
        call(model, (torch.randn(4, 3, 8, 8),))


def test_inference_mode_sees_the_same():
    # GIVEN operations that come to the tracer whole in inference mode
    class Casting(nn.Linear):
        def forward(self, x):
            return F.linear(x, self.weight.to(torch.bfloat16))

    twin, model = pair(nn.Sequential(*(Casting(64, 64, bias=False) for _ in range(5))))
    for _ in range(4):
        with torch.inference_mode():
            x = torch.randn(2, 64).bfloat16()
            assert same(model(x), twin(x))
    # THEN the weights are found, and paged
    assert model.memlab.streamed_bytes == 5 * 64 * 64 * 4 and model.memlab.counters["copies"] > 0


def test_names_and_numbers():
    # GIVEN a model that has a layer called memlab
    model = mlp()
    model.memlab = nn.Linear(64, 64)
    paged(model, budget=2e6)
    assert isinstance(model.memlab, nn.Linear) and memlab.plan_of(model).stage == "untraced"
    # AND budgets that are none
    for budget in (1.5, True, [1]):
        with pytest.raises(ValueError, match="budget="):
            paged(mlp(), budget=budget)
    # AND a model that micro_batch cannot be for: it is left as it was
    alone = nn.Linear(64, 64)
    with pytest.raises(ValueError, match="made of blocks"):
        paged(alone, micro_batch=2)
    assert "forward" not in vars(alone) and type(vars(alone)["_parameters"]) is dict


@pytest.mark.parametrize("way", ["page", "chunk"])
def test_again_and_again(way):
    # GIVEN a model that is paged, given back, and paged anew
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
        # THEN nothing is copied again because of what the one before has left
        assert model.memlab.counters["reloads"] == 0
        memlab.unpage(model)
        assert same(call(model, x), call(twin, x))
