"""Paged models that are saved, copied, forked and unpaged, also during a forward."""

import copy
import io
import os
import pickle
import threading
from dataclasses import replace

import memlab
import pytest
import torch
from memlab._paging.settings import Settings
from memlab.paged_model import page_with
from paging.small import behave_alike, mlp, paged, pair, same, small_units  # noqa: F401 (a fixture)
from paging.zoo import call
from torch import nn


def test_copies_and_pickles_are_ordinary_models(tmp_path):
    x = torch.randn(3, 64)
    model = paged(mlp(), budget="min", max_layer_size=1)
    model.note = "kept"
    for stage in range(4):
        expected = call(model, (x,))
        torch.save(model, tmp_path / "model.pt")
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), copy.copy(model)]
        copies.append(torch.load(tmp_path / "model.pt", weights_only=False))
        for index, one in enumerate(copies):
            # THEN a copy computes the same and is not paged
            assert one.note == "kept"
            if index != 2:
                assert "memlab" not in vars(one) and "forward" not in vars(one[0]) and "_apply" not in vars(one)
                assert type(one[0]._parameters) is dict
                assert same(call(one, (x,)), expected), stage
        # AND saving one layer saves only that layer
        saved = io.BytesIO()
        torch.save(model[0].state_dict(), saved)
        assert saved.tell() < 3 * 64 * 64 * 4


def test_copies_of_parametrized_models():
    # GIVEN a model that PyTorch copies attribute by attribute
    twin = mlp()
    nn.utils.parametrizations.weight_norm(twin[1])
    twin, model = pair(twin)
    x = (torch.randn(2, 64),)
    for _ in range(4):
        assert same(call(model, x), call(twin, x))
        other = copy.deepcopy(model)
        # THEN a copy is independent
        with torch.no_grad():
            other[1].bias.add_(1)
        assert not torch.equal(call(other, x), call(model, x))
        other.double()


def test_round_trip_of_state():
    # GIVEN two models of different weights
    one, other = mlp(), mlp()
    x = torch.randn(3, 64)
    expected = call(other, (x,))
    model = paged(one, budget="min", on_change="upload")
    for _ in range(3):
        call(model, (x,))
    # WHEN the paged one loads the other's state, THEN it computes the same as the other
    model.load_state_dict(other.state_dict())
    assert same(call(model, (x,)), expected)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


def test_state_during_a_forward():
    # GIVEN hooks and a thread that save and copy the model while it runs
    twin, model = pair(mlp())
    expected = twin.state_dict()
    by_hook, by_thread = [], []

    def save(module, args):
        by_hook.append(copy.deepcopy(model).state_dict())
        by_hook.append(model.state_dict())

    model[3].register_forward_pre_hook(save)
    ends = threading.Event()

    def keep_saving():
        while not ends.is_set():
            by_thread.append({key: value.clone() for key, value in model.state_dict().items()})

    thread = threading.Thread(target=keep_saving)
    thread.start()
    forwards = 0
    while forwards < 30 or (len(by_thread) < 30 and thread.is_alive()):
        x = (torch.randn(2, 64),)
        assert same(call(model, x), call(twin, x))
        forwards += 1
    ends.set()
    thread.join()
    # THEN each copy is complete
    assert len(by_hook) == 2 * forwards and len(by_thread) >= 30
    assert all(torch.equal(state[key], expected[key]) for state in by_hook + by_thread for key in expected)


@pytest.mark.parametrize("before", range(3))
def test_unpaging_during_a_forward(before):
    twin, model = pair(mlp())
    x = (torch.randn(2, 64),)
    for _ in range(before):
        call(model, x)
    handle = model[2].register_forward_pre_hook(lambda *_: memlab.unpage(model))
    with pytest.raises(RuntimeError, match="a forward of this model is under way"):
        call(model, x)
    handle.remove()
    # THEN the model is unchanged, and can be unpaged afterwards
    behave_alike(twin, model, [x] * 3)
    behave_alike(twin, memlab.unpage(model), [x])


def test_a_forked_child():
    # (Includes a model with copies slow enough that one runs at the fork: the last forward starts those of the next.)
    slow = replace(Settings.checked("cpu", budget="min"), bytes_per_second=200_000.0)
    model = page_with(mlp(), slow)
    x = (torch.randn(2, 64),)
    for _ in range(3):
        expected = call(model, x)
    child = os.fork()
    if child == 0:
        # GIVEN a child without its parent's threads, THEN the error explains it, and the child can continue unpaged
        code = 1
        try:
            try:
                call(model, x)
            except RuntimeError as error:
                code = 0 if "forked" in str(error) else 2
            code = code or (0 if torch.equal(call(memlab.unpage(model), x), expected) else 3)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(call(model, x), expected)
