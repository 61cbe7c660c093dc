"""Weights that are edited or replaced between forwards are used as edited, or refused: never silently stale."""

import copy
import weakref

import memlab
import pytest
import torch
from paging.small import Words, behave_alike, between, mlp, paged, pair, same, small_units  # noqa: F401 (a fixture)
from paging.zoo import call
from torch import nn


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
            # WHEN weights of any layer are edited, THEN the next forward uses the new values
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
        # GIVEN a paged model with the default policy
        twin = mlp()
        model = paged(copy.deepcopy(twin), budget=budget)
        for _ in range(3):
            call(model, (x,))
        # WHEN a weight is edited in place, THEN the next forward is refused, and the error names the weight
        with torch.no_grad():
            model[2].weight.mul_(2)
            twin[2].weight.mul_(2)
        with pytest.raises(RuntimeError, match=r"2\.weight changed.*on_change"):
            call(model, (x,))
        with pytest.raises(RuntimeError, match=r"2\.weight"):
            call(model, (x,))
        # AND the model continues once the edit is accepted
        model.memlab.refresh()
        assert same(call(model, (x,)), call(twin, (x,)))


@pytest.mark.parametrize("budget", ["min", "1GiB"])
def test_edits_through_references_kept_from_before(budget):
    # GIVEN references to weights from before paging, as tensors, data and arrays
    twin, model = pair(mlp(), budget=budget)
    kept = [(list(one.parameters()), one[1].weight.data, one[2].weight.detach().numpy()) for one in (twin, model)]
    for turn in range(8):
        # WHEN weights are changed through them without a version change
        for parameters, data, array in kept:
            parameters[0].data.mul_(1.1)
            parameters[-2].data.add_(turn)
            data.mul_(0.9)
            array[:] += 0.1
        # THEN the next forward uses the new values
        behave_alike(twin, model, [(torch.randn(2, 64),)])


@pytest.mark.parametrize("budget", ["min", "1GiB"])
@pytest.mark.parametrize("hold", [lambda w: w, lambda w: w.data, lambda w: w.detach().numpy()])
def test_edits_through_a_reference_that_is_then_dropped(budget, hold):
    # GIVEN a reference to a weight that is held during a forward, used for an edit without a version change, and dropped
    twin, model = pair(mlp(), budget=budget, on_change="upload")
    x = (torch.randn(2, 64),)
    for _ in range(3):
        call(model, x)
    held = [hold(one[2].weight) for one in (twin, model)]
    call(model, x)
    for one in held:
        (one.data if isinstance(one, torch.Tensor) else one)[:] *= 2
    del held, one
    # THEN the next and later forwards use the new value
    for _ in range(3):
        assert same(call(model, x), call(twin, x))


def test_other_memory_for_a_table_that_is_held_all_the_time():
    # GIVEN a program that holds the table of a model, and forwards that find no edits
    twin, model = pair(Words(), on_change="upload")
    held = [one.table.weight for one in (twin, model)]
    ids = torch.randint(0, 20_000, (2, 7))
    for _ in range(5):
        assert same(call(model, (ids,)), call(twin, (ids,)))
    assert model.memlab.gathered_bytes > 0
    # WHEN it gives the table other memory and drops its reference, THEN the next forward reads the new memory
    for which in range(2):
        held[which].data = held[which].data * 2
    for _ in range(2):
        assert same(call(model, (ids,)), call(twin, (ids,)))


@pytest.mark.parametrize("budget", ["min", "1GiB"])
def test_other_memory_for_a_weight_that_is_found_by_a_weak_reference(budget):
    # GIVEN weak references to a weight, and forwards that find no edits
    twin, model = pair(mlp(), budget=budget, on_change="upload")
    references = [weakref.ref(one[3].weight) for one in (twin, model)]
    x = (torch.randn(2, 64),)
    for _ in range(5):
        call(model, x)
    # WHEN it is given other memory, THEN the next forward uses it
    for reference in references:
        reference().data = reference().data * 2
    for _ in range(2):
        assert same(call(model, x), call(twin, x))


class Listing(nn.Sequential):
    """Layers whose weights are also in a list."""

    def __init__(self):
        super().__init__(*mlp())
        self.weights = [layer.weight for layer in self]


@pytest.mark.parametrize("budget", ["min", "1GiB"])
def test_other_memory_for_a_weight_that_is_read_from_a_list(budget):
    # GIVEN a model whose forwards find no edits
    twin, model = pair(Listing(), budget=budget, on_change="upload")
    x = (torch.randn(2, 64),)
    for _ in range(5):
        call(model, x)
    # WHEN a weight is given other memory, visible only by its address: it was read from a list, and nothing holds it since
    for one in (twin, model):
        one.weights[3].data = one.weights[3].data * 2
    # THEN the next forward uses it
    for _ in range(2):
        assert same(call(model, x), call(twin, x))


def test_a_replacement_is_refused_until_it_is_undone():
    twin, model = pair(mlp())
    x = (torch.randn(2, 64),)
    for _ in range(3):
        call(model, x)
    old = model[2].weight
    model[2].weight = nn.Parameter(torch.randn(64, 64))
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"2\.weight was replaced"):
            call(model, x)
    model[2].weight = old
    assert same(call(model, x), call(twin, x))


@pytest.mark.parametrize("when", range(5))
def test_weights_replaced_at_any_time(when):
    # GIVEN a weight that is replaced before the first forward, or between any two
    for on_change in ("error", "upload"):
        twin, model = pair(mlp(), on_change=on_change)
        for turn in range(6):
            if turn == when:
                new = torch.randn(64, 64)
                twin[2].weight, model[2].weight = nn.Parameter(new.clone()), nn.Parameter(new.clone())
            x = (torch.randn(2, 64),)
            if turn == when and on_change == "error":
                with pytest.raises(RuntimeError, match=r"2\.weight was replaced"):
                    call(model, x)
                break
            # THEN it is used from then on, or refused
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


def test_referenced_memory_is_not_overwritten():
    # GIVEN averaged weights that replace the data pointers, while a reference keeps the former data to restore it
    _, model = pair(mlp(), on_change="upload")
    x = (torch.randn(2, 64),)
    call(model, x)
    former, value = model[2].weight.data, model[2].weight.detach().clone()
    model[2].weight.data = torch.zeros(64, 64)
    # THEN the forward is refused, so that the former weights are not lost
    with pytest.raises(RuntimeError, match=r"2\.weight was given other memory.*clone"):
        call(model, x)
    assert torch.equal(former, value)
