"""Chunked models: the leading part on the device, the rest on the CPU or paged; results equal those of the full model."""

import copy

import memlab
import pytest
import torch
from memlab._paging import kept_tensors
from paging.small import between, mlp, same
from paging.zoo import ZOO, build, call
from torch import nn


@pytest.fixture(autouse=True)
def one_thread_and_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.mark.parametrize("rest", ["cpu", "page"])
@pytest.mark.parametrize("name", ZOO)
def test_zoo(name, rest):
    # GIVEN a model whose leading half stays on the device
    torch.manual_seed(1)
    inputs = [ZOO[name].inputs() for _ in range(4)]
    twin, model = build(name), build(name)
    model.load_state_dict(twin.state_dict())
    half = between(copy.deepcopy(twin), inputs) if rest == "page" else sum(p.nbytes for p in model.parameters()) // 2
    # WHEN it is chunked, THEN its results are the same
    assert memlab.chunk(model, "cpu", f"{half}B", rest=rest) is model
    for one in inputs:
        assert same(call(model, one), call(twin, one))
    assert memlab.plan_of(model).stage == "settled"
    # AND it can be unpaged
    memlab.unpage(model)
    assert same(call(model, inputs[0]), call(twin, inputs[0]))
    assert "forward" not in vars(model)


def test_the_leading_part_is_in_the_order_of_execution():
    # GIVEN a model whose layers run in reverse order
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

        def forward(self, x):
            for layer in reversed(self.layers):
                x = layer(x)
            return x

    # WHEN the parameters of three layers may stay on the device (counted in parameters, as in optimem)
    model = memlab.chunk(Backwards(), "cpu", 3 * (64 * 64 + 64))
    assert "first forward" in str(model.memlab)
    call(model, (torch.randn(2, 64),))
    # THEN the layers that run first stay
    resident = {unit.name for unit in model.memlab.units if unit.resident}
    assert resident == {f"layers.{n}.{kind}" for n in (5, 4, 3) for kind in ("weight", "bias")}
    assert "3 parts run on the CPU" in str(model.memlab)


def test_tied_weights_stay_together():
    # GIVEN a model that begins and ends with one weight, and room for little more than that weight
    model = build("tied")
    memlab.chunk(model, "cpu", "13KiB")
    call(model, ZOO["tied"].inputs())
    # THEN the weight is in one place
    assert [unit.name for unit in model.memlab.units if unit.resident] == ["emb.weight"]


def test_activations_get_the_type_of_each_part():
    # GIVEN a model with lower precision in the part on the device
    model = nn.Sequential(nn.Linear(64, 64).bfloat16(), nn.Linear(64, 64))
    memlab.chunk(model, "cpu", 64 * 64 + 64)
    # WHEN its activations cross, THEN they have the type of each part
    for _ in range(3):
        assert call(model, (torch.randn(2, 64),)).dtype == torch.float32


def test_errors():
    model = memlab.chunk(mlp(), "cpu")
    with pytest.raises(RuntimeError, match="paged or chunked already"):
        memlab.chunk(model, "cpu")
    with pytest.raises(RuntimeError, match=r"chunked by memlab.*cannot be moved"):
        model.double()
    with pytest.raises(ValueError, match="rest"):
        memlab.chunk(mlp(), "cpu", rest="disk")
    with pytest.raises(ValueError, match="not a size"):
        memlab.chunk(mlp(), "cpu", "half")
    assert same(call(copy.deepcopy(model), (torch.ones(1, 64),)), call(model, (torch.ones(1, 64),)))


class Parts(nn.Module):
    """An encoder that is called alone, and a forward that does not call it."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        return self.decoder(x)


def test_a_part_that_runs_before_the_model_is_not_all_that_is_placed():
    # GIVEN a model whose encoder runs before its forward, and room for both
    model = memlab.chunk(Parts(), "cpu", 2 * 65 * 64)
    call(model.encoder, (torch.randn(2, 64),))
    assert model.memlab.stage == "untraced"
    call(model, (torch.randn(2, 64),))
    # THEN both are on the device
    assert all(unit.resident for unit in model.memlab.units)
    # AND if the program only ever calls one part, memlab places it at its second call
    model = memlab.chunk(Parts(), "cpu", 65 * 64)
    for _ in range(2):
        call(model.encoder, (torch.randn(2, 64),))
    assert {unit.name for unit in model.memlab.units if unit.resident} == {"encoder.weight", "encoder.bias"}


class Holder:
    """An object that a program keeps between forwards, like a cache of keys and values."""

    def __init__(self):
        self.kept, self.device = None, None


def test_tensors_kept_by_a_forward_move_with_their_part(monkeypatch):
    # GIVEN tensors from a traced forward: of one part, of another, and of the caller
    moved = []
    monkeypatch.setattr(kept_tensors, "move_together", lambda tensors, device: moved.extend(tensors))
    tensor, other, given = torch.ones(4), torch.ones(4), torch.ones(4)
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    holder, calling = Holder(), [first]
    kept = kept_tensors.KeptTensors(lambda: calling[0])
    with kept:
        holder.kept, holder.device = tensor * 2, torch.device("cpu")
        given.add_(1)
        view = holder.kept[:2]
        result = tensor * 3
        calling[0] = last
        _elsewhere = other * 2
        _table = torch.arange(4)
    # WHEN the first part is on another device, THEN its tensors move there, with their views, AND nothing else does
    kept.move(torch.device("cuda"), {first}, ({"given": given, "cache": [holder]},), result)
    assert [id(one) for one in moved] == [id(holder.kept), id(view)]
    # AND its holder has the new device
    assert holder.device == torch.device("cuda")
