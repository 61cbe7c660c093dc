"""Paging on the simulated GPU: its copies and addresses are real, its kernels do nothing."""

import json
from pathlib import Path

import pytest
from conftest import ROOT
from paging.zoo import ZOO

PROGRAMS = Path(__file__).parent / "programs"


def lines(run):
    assert run.code == 0, run.errors[-3000:]
    return [json.loads(line) for line in run.output.splitlines() if line.startswith("{")]


def environment():
    return {"PYTHONPATH": ROOT / "python"}


def test_on_a_gpu(memlab):
    # GIVEN the zoo on a simulated GPU
    names = [name for name in ZOO if name != "branches"]
    found = lines(memlab.python(PROGRAMS / "paged.py", *names, preload=False, env=environment()))
    # THEN the bytes of each unit are on the device at each use, and the unpaged model is complete
    assert [one["model"] for one in found] == names
    for one in found:
        assert one["stage"] == "settled" and one["state"] and one["pinned"] and one["compared"] > 0, one


SOME = ("attention", "listed", "tied", "t5")


@pytest.mark.parametrize("names", [SOME, pytest.param((), marks=pytest.mark.long)], ids=["some", "all"])
def test_chunked_models_on_a_gpu(memlab, names):
    # GIVEN models of the zoo with parts on the CPU, at ten capacities
    (found,) = lines(memlab.python(PROGRAMS / "chunked.py", *names, preload=False, env=environment()))
    # THEN each runs, with inputs from the CPU and the GPU (results are compared on a real GPU, with --real)
    assert set(found.values()) == {10}
    assert len(found) == (len(names) or len(ZOO) - 1)


def test_chunked_models_generate(memlab):
    pytest.importorskip("transformers")
    # GIVEN language models with parts on the CPU; WHEN they generate, in each way of transformers, twice; THEN nothing
    # fails: cache entries of the first forward are on the device that uses them
    (found,) = lines(memlab.python(PROGRAMS / "chunked_generate.py", preload=False, env=environment()))
    assert len(found["done"]) == 9


def test_recurrent_weights_are_contiguous(memlab):
    # GIVEN an LSTM and a GRU, whose weights PyTorch copies into one buffer before each call unless they are contiguous
    env = environment() | {"PYTHONWARNINGS": "always"}
    run = memlab.python(PROGRAMS / "paged.py", "recurrent", preload=False, env=env)
    # THEN they are contiguous, and PyTorch does not warn
    assert lines(run)[0]["state"]
    assert "contiguous chunk" not in run.errors


def test_ways_to_run_on_a_gpu(memlab):
    # GIVEN forwards in a CUDA graph, compiled, through frozen weights, and in two parts
    ways = ["graph", "threads", "compiled", "frozen", "chunked"]
    found = lines(memlab.python(PROGRAMS / "paged.py", *ways, preload=False, env=environment()))
    # THEN all of them run (results are compared on a real GPU, with --real)
    assert [one["model"] for one in found] == ways
    assert found[-1]["halves"] == ["cpu", "cuda"]


def test_trained_weights_are_on_the_gpu(memlab):
    # GIVEN a model run without gradients, then partly trained: an LSTM, and a head that is the embedding's weight
    run = memlab.python(PROGRAMS / "paged.py", "trained", preload=False, env=environment() | {"PYTHONWARNINGS": "always"})
    (found,) = lines(run)
    # THEN all of it is paged first, and then the trained weights are on the GPU for the optimizer, contiguous
    expected = {"paged": ["cpu"], "trained": ["cuda"], "base": ["cpu"], "copied": ["cpu"], "back": ["cpu"]}
    assert found["where"] == expected
    assert "contiguous chunk" not in run.errors
    # AND in copies of it tied weights are one tensor
    assert found["tied"]


def test_methods_that_compute_run_on_the_gpu(memlab):
    # GIVEN a program that calls a method of a paged model, and never its forward; THEN the method runs like a forward
    (found,) = lines(memlab.python(PROGRAMS / "methods.py", preload=False, env=environment()))
    assert found == {"devices": ["cuda:0"], "stage": "settled"}


def test_added_adapters_are_named_and_paged_after_refresh(memlab):
    pytest.importorskip("peft")
    # GIVEN adapters that are added to a paged model; WHEN it is called
    (found,) = lines(memlab.python(PROGRAMS / "adapters.py", preload=False, env=environment()))
    assert found["before"] == ["cuda:0"] * 3
    # THEN the error names an adapter's weight, the number of others, and a fix
    assert found["added"] == (
        "0.lora_A.default.weight (and 3 more) was added after the model was paged, and lies on cpu, where the model does "
        "not run: call model.memlab.refresh() to move it to cuda:0 for good, or memlab.unpage(model) before adding to the "
        "model"
    )
    # AND the fix works: the adapters are on the device, and copies and the unpaged model on the CPU
    assert found["after"] == ["cuda:0"] * 3
    assert found["kept"]["added after the model was paged"] == 4 * 64 * 4 * 4
    assert found["copy"] == found["unpaged"] == ["cpu"]
    # AND a chunked model's error does, too
    assert found["chunked"].startswith("0.lora_A.default.weight (and 3 more) was added after the model was chunked")
    # AND a weight added to another module is refused by name
    assert found["tied"].startswith("4.weight (and 1 more) was added after the model was paged")
    assert found["refused"].startswith("4.weight is a weight of the paged model: unpage the model before tying it")


@pytest.mark.long
def test_a_pipeline_of_paged_models(memlab):
    pytest.importorskip("diffusers")
    # GIVEN a diffusers pipeline with one model or all of them paged; WHEN it runs
    (found,) = lines(memlab.python(PROGRAMS / "pipeline.py", preload=False, env=environment()))
    # THEN it creates its latents on the models' device (images are compared on a real GPU, with --real)
    assert found["images"] == {"unet": ["cuda:0", None], "unet+vae+text_encoder": ["cuda:0", None]}
    # AND the unpaged pipeline is on the CPU again
    assert found["device"] == "cpu"


def test_share_of_the_card(memlab):
    # GIVEN a process that PyTorch allows 448 MiB of the card, a model of 512 MiB, and a larger budget
    (found,) = lines(memlab.python(PROGRAMS / "paged.py", "share", preload=False, env=environment()))
    # THEN the plan stays within the process's share, and uses it
    assert 64 << 20 < found["resident"] < found["reserved"] <= found["allowed"]
    # AND the memory of the measurement is freed before the final memory is allocated
    assert len(found["cleared"]) == 2 and max(found["cleared"]) < 64 << 20


def test_the_edge_of_the_card(memlab):
    # GIVEN a process with exactly the room for two layers and the activations
    (found,) = lines(memlab.python(PROGRAMS / "paged.py", "edge", preload=False, env=environment()))
    # THEN weights also use the memory reserved for later forwards: one layer is copied while another computes
    assert 2 * found["largest"] <= found["ring"] < found["reserved"] <= found["allowed"]


def test_a_host_that_is_slower_than_the_gpu(memlab):
    # GIVEN 12 copies that the GPU's compute hides, and a host that is slower than the GPU, also for each copy
    slow, once, alone = (
        lines(memlab.python(PROGRAMS / "paged.py", way, preload=False, env=environment()))[0]["copied"]
        for way in ("slow host", "slow once", "slow alone")
    )
    # WHEN two settled forwards were timed, THEN memlab replans, with few enough copies to cost 2 %
    assert slow[1:3] == [12, 12]
    assert 1 <= slow[3] <= 4 and slow[3:] == [slow[3]] * 3
    # AND a single slow forward changes nothing, whether the other one is quick or has another input
    assert once[1:] == alone[1:] == [12] * 5


def test_a_forked_child(memlab):
    # GIVEN a model in pinned memory, which the system withholds from children; WHEN a child unpages it
    (found,) = lines(memlab.python(PROGRAMS / "paged.py", "forked", preload=False, env=environment()))
    # THEN the error explains that the child has no weights, with a fix, and its parent continues
    assert found["pinned"] and found["count"] == 6
    assert "no copy of its weights, whose memory is pinned" in found["error"] and "spawn" in found["error"]


@pytest.mark.parametrize("nth", [1, 2])
def test_pinning_refused(memlab, nth):
    # GIVEN a system that pins no memory
    env = environment() | {"SIMGPU_FAIL": f"cuMemHostRegister_v2:712@{nth}", "PYTHONWARNINGS": "always"}
    run = memlab.python(PROGRAMS / "paged.py", "resnet101", "llama", preload=False, env=env)
    # THEN the model runs from unpinned memory, a warning explains it with a remedy, and every byte is right
    found = lines(run)
    refused = [one for one in found if not one["pinned"]]
    assert len(refused) == 1
    assert "pins no more than" in refused[0]["notes"][0] and "ulimit -l" in run.errors
    assert all(one["state"] and one["compared"] > 0 for one in found)


@pytest.mark.long
@pytest.mark.parametrize("read_only", [True, False])
def test_ranks_of_torchrun_share_weights(memlab, read_only):
    # GIVEN two ranks on a device each, with a driver that can pin memory for reading only, or cannot
    env = environment() | ({} if read_only else {"SIMGPU_FAIL": "cuMemHostRegister_v2:801@2"})
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = memlab.python(*torchrun, PROGRAMS / "shared_ranks.py", preload=False, env=env, devices=2)
    # WHEN they page a model, first each for itself and then together
    alone, together = lines(run)
    # THEN the host has the weights twice, and then once
    assert [[rank["sharing"] for rank in way["ranks"]] for way in (alone, together)] == [[0, 0], [2, 2]]
    weights = alone["ranks"][0]["weights"]
    assert sum(rank["host"] for rank in alone["ranks"]) == 2 * weights
    assert abs(sum(rank["host"] for rank in together["ranks"]) - weights) < 64 << 10
    for rank in alone["ranks"] + together["ranks"]:
        # AND it is pinned, and every byte on the devices is right
        assert rank["pinned"] and rank["stage"] == "settled" and rank["compared"] > 0
    # AND kernels get shared memory only if they cannot write to it
    for rank in together["ranks"]:
        assert (rank["gathered"] > 0) == read_only
        assert read_only or "pins no memory for reading only" in rank["notes"][0]


@pytest.mark.parametrize("budget", [[], ["--budget", "min"]], ids=["all", "min"])
def test_on_two_gpus(memlab, budget):
    # GIVEN the zoo over two simulated GPUs, with room for all of it or for two units each
    names = [name for name in ZOO if name != "branches"]
    run = memlab.python(PROGRAMS / "paged_devices.py", *names, *budget, preload=False, env=environment(), devices=2)
    found = lines(run)
    # THEN the bytes of each unit are on its device at each use, and the unpaged model is complete
    assert [one["model"] for one in found] == names
    for one in found:
        assert one["stage"] == "settled" and one["state"] and one["pinned"] and one["compared"] > 0, one
        # AND results are on the first device, which remains the program's current device
        assert one["results"] == ["cuda:0"] and one["current"] == 0, one
        # AND each forward after the first hops once
        assert one["hops"] == 4 * (len(one["devices"]) - 1), one
    assert sum(len(one["devices"]) == 2 for one in found) > len(found) // 2
    assert all((one["streamed"] > 0) == bool(budget) for one in found if one["model"] in ("resnet101", "gpt2", "llama"))


def test_ways_to_run_on_two_gpus(memlab):
    # GIVEN budgets for each, threads, gradients, caches that a forward leaves for the next one, and a capture
    ways = ["budgets", "threads", "frozen", "trained", "caching", "caching object", "graph", "refused"]
    run = memlab.python(PROGRAMS / "paged_devices.py", *ways, preload=False, env=environment(), devices=2)
    found = {one["model"]: one for one in lines(run)}
    # THEN all of them run (results are compared on real GPUs, with --real)
    assert list(found) == ways and all(found[way]["stage"] == "settled" for way in ways if way != "refused")
    # AND each device is within its budget, and copies the rest
    budgets = found["budgets"]
    assert all(0 < budgets["taken"][device] <= budgets["given"][device] for device in ("cuda:0", "cuda:1"))
    assert budgets["streamed"] > 0
    # AND weights train on the device of their layers, which also has the layers' kept tensors
    assert found["trained"]["trained"] == ["cuda:0", "cuda:1"]
    for way in ("caching", "caching object"):
        assert found[way]["cached"] == ["cuda:0"] * 3 + ["cuda:1"] * 3
    # AND unsupported calls raise an explanatory error
    assert "a CUDA graph is of one device" in found["graph"]["error"]
    errors = found["refused"]["errors"]
    assert found["refused"]["untouched"] and len(errors) == 5
    assert "cuda:0 is there twice" in errors["cuda:0, cuda:0"] and "cuda:0 is there twice" in errors["cuda, cuda:0"]
    assert "all must be GPUs" in errors["cuda:0, cpu"]
    assert "PyTorch finds 2 CUDA device(s)" in errors["cuda:0, cuda:99"]
    assert "must be a device" in errors["cuda:0, tpu"]
