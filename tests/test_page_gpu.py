"""Paging on a GPU, a simulated one: its copies and addresses are real, its kernels do nothing."""

import json

import pytest
from conftest import PROGRAMS, ROOT
from paging.zoo import ZOO


def lines(run):
    assert run.code == 0, run.errors[-3000:]
    return [json.loads(line) for line in run.output.splitlines() if line.startswith("{")]


def environment():
    return {"PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'tests'}"}


def test_on_a_gpu(memlab):
    # GIVEN the zoo on a (simulated) GPU, whose copies are real and whose kernels do nothing
    names = [name for name in ZOO if name != "branches"]
    found = lines(memlab.python(PROGRAMS / "paged.py", *names, preload=False, env=environment()))
    # THEN whenever a unit is used, its bytes are on the device, and the model comes back whole
    assert [one["model"] for one in found] == names
    for one in found:
        assert one["stage"] == "settled" and one["state"] and one["pinned"] and one["compared"] > 0, one


def test_recurrent_weights_lie_as_cudnn_wants_them(memlab):
    # GIVEN an LSTM and a GRU, whose weights PyTorch copies together before each call unless they lie in one piece
    env = environment() | {"PYTHONWARNINGS": "always"}
    run = memlab.python(PROGRAMS / "paged.py", "recurrent", preload=False, env=env)
    # THEN it finds them so, and does not warn
    assert lines(run)[0]["state"]
    assert "contiguous chunk" not in run.errors


def test_ways_to_run_on_a_gpu(memlab):
    # GIVEN forwards in a CUDA graph, compiled, through frozen weights, and in two parts
    ways = ["graph", "threads", "compiled", "frozen", "chunked"]
    found = lines(memlab.python(PROGRAMS / "paged.py", *ways, preload=False, env=environment()))
    # THEN all of them run (what they compute is looked at on a real GPU, with --real)
    assert [one["model"] for one in found] == ways
    assert found[-1]["halves"] == ["cpu", "cuda"]


def test_what_trains_is_on_the_gpu(memlab):
    # GIVEN a model run without gradients, then trained in part: an LSTM, and a head that is the embedding's weight
    run = memlab.python(PROGRAMS / "paged.py", "trained", preload=False, env=environment() | {"PYTHONWARNINGS": "always"})
    (found,) = lines(run)
    # THEN all of it is paged first, and afterwards what trains is where an optimizer wants it, in one piece
    wanted = {"paged": ["cpu"], "trained": ["cuda"], "base": ["cpu"], "copied": ["cpu"], "back": ["cpu"]}
    assert found["where"] == wanted
    assert "contiguous chunk" not in run.errors
    # AND in copies of it too, what is tied is one tensor
    assert found["tied"]


def test_share_of_the_card(memlab):
    # GIVEN a process that PyTorch allows 448 MiB of the card, a model of 512 MiB, and a budget of more than that
    (found,) = lines(memlab.python(PROGRAMS / "paged.py", "share", preload=False, env=environment()))
    # THEN the plan keeps to what the process may have, and uses it
    assert 100 << 20 < found["resident"] < found["reserved"] <= found["allowed"]
    # AND the memory in which it was measured is given back before the final one is taken
    assert len(found["cleared"]) == 2 and max(found["cleared"]) < 32 << 20


@pytest.mark.parametrize("nth", [1, 2])
def test_pinning_refused(memlab, nth):
    # GIVEN a system that pins no memory
    env = environment() | {"SIMGPU_FAIL": f"cuMemHostRegister_v2:712@{nth}", "PYTHONWARNINGS": "always"}
    run = memlab.python(PROGRAMS / "paged.py", "resnet101", "llama", preload=False, env=env)
    # THEN the model runs from memory that is not pinned, which is said, with what to do, and every byte is right
    found = lines(run)
    refused = [one for one in found if not one["pinned"]]
    assert len(refused) == 1
    assert "pins no more than" in refused[0]["notes"][0] and "ulimit -l" in run.errors
    assert all(one["state"] and one["compared"] > 0 for one in found)
