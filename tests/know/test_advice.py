"""`memlab advise`: its predicted peak equals PyTorch's peak after the advice is followed, on the simulated card."""

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PYTHON, ROOT, Memlab

PROGRAMS = Path(__file__).parent / "programs"

# One process runs all tests of this file, so that each training is recorded once.
pytestmark = pytest.mark.xdist_group("advice")

PROGRAM = PROGRAMS / "advised.py"
RUFF = Path(sys.executable).parent / "ruff"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Records a training run, by default with GPU times. Returns its trace and PyTorch's own peaks."""

    @functools.cache
    def record(kind, time="1", **settings):
        memlab = Memlab(tmp_path_factory.mktemp(kind))
        done = memlab.python(PROGRAM, kind, env={"MEMLAB_TIME": time} | settings)
        assert done.code == 0, done.errors
        return done.trace, json.loads(done.output.splitlines()[-1])

    return record


def advise(memlab, trace, *options):
    command = [memlab.command, "advise", "--json", *options, trace]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=memlab.environment())
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    for piece in answer["advice"]:
        check_names(piece)
    return answer


def check_names(piece):
    """Code of an advice defines or imports each of its names. That of a leak is a sentence."""
    if piece["kind"] != "leak" and not piece["how"].startswith("export "):
        command = [RUFF, "check", "--isolated", "--select", "E9,F821", "-"]
        done = subprocess.run(command, input=piece["how"], capture_output=True, text=True)
        assert done.returncode == 0, (piece["how"], done.stdout)


def of_kind(answer, kind):
    (advice,) = [advice for advice in answer["advice"] if advice["kind"] == kind]
    return advice


def following(memlab, kind, *advice):
    """PyTorch's own peaks when the program follows the advice."""
    env = {"ADVICE": json.dumps([advice])}
    for piece in advice:
        if piece["how"].startswith("export "):
            name, _, value = piece["how"].removeprefix("export ").partition("=")
            env[name] = value
    done = memlab.run(PYTHON, PROGRAM, kind, preload=False, env=env)
    assert done.code == 0, done.errors
    return json.loads(done.output.splitlines()[-1])


@pytest.mark.parametrize("kind", ["micro-batches", "gpt", "gpt-eager", "resnet", "stages", "unet", "llama-lora", "lengths"])
def test_checkpointing_gives_the_predicted_peak(memlab, recorded, kind):
    # GIVEN training without checkpointing, and advice on its recording
    trace, before = recorded(kind)
    answer = advise(memlab, trace)
    assert answer["peak_bytes"] == before["allocated"]
    advice = of_kind(answer, "checkpoint")
    assert advice["gpu_ns"] > 0
    # WHEN the program follows the advice
    after = following(memlab, kind, advice)
    # THEN its peak is the predicted one, within 2 %
    assert after["allocated"] == pytest.approx(advice["bytes_after"], rel=0.02)
    assert advice["bytes_after"] == before["allocated"] - advice["saved_bytes"] < before["allocated"] * 0.8


@pytest.mark.long
def test_a_target_is_reached_with_as_few_modules_as_it_takes(memlab, recorded):
    # GIVEN training, and a target that checkpointing half of its blocks reaches
    trace, before = recorded("gpt")
    target = before["allocated"] * 2 // 3
    # WHEN memlab advises on that target
    advice = of_kind(advise(memlab, trace, "--target", f"{target}B"), "checkpoint")
    # THEN it names only some of the blocks, AND the program then stays within the target
    assert advice["where"].startswith("blocks.") and "blocks.0 … blocks.5" not in advice["where"]
    assert following(memlab, "gpt", advice)["allocated"] <= target * 1.03


def test_without_times_the_cost_is_not_known(memlab, recorded):
    # GIVEN a recording without GPU times; THEN the advice gives its cost as unknown
    trace, _ = recorded("gpt", time="0")
    answer = advise(memlab, trace)
    checkpoint, offload = (of_kind(answer, kind) for kind in ("checkpoint", "offload_activations"))
    assert {advice[cost] for advice in (checkpoint, offload) for cost in ("cost_ns", "gpu_ns")} == {None}


def test_of_some_steps_the_cost_of_a_step_is_the_same(memlab):
    # GIVEN recordings of one training with the times of all steps, and of every fourth step
    costs = []
    for every in ("1", "4"):
        trace = memlab.folder / f"{every}.jsonl"
        env = {"MEMLAB_TIME": "1", "MEMLAB_TIME_EVERY": every, "MEMLAB_OUTPUT": str(trace)}
        done = memlab.python(PROGRAM, "gpt", "--steps", "16", env=env)
        assert done.code == 0, done.errors
        answer = advise(memlab, trace)
        costs.append([of_kind(answer, kind)["gpu_ns"] for kind in ("checkpoint", "offload_activations")])
    # THEN both give the same cost of checkpointing, AND the same wait for offloaded activations
    complete, sampled = costs
    assert sampled == pytest.approx(complete, rel=0.03)


def test_offload_advice_has_the_cost_that_the_link_cannot_hide(memlab, recorded):
    # GIVEN training whose activations far exceed the link's capacity during its forward, recorded with GPU times
    trace, _ = recorded("gpt")
    answer = advise(memlab, trace)
    advice = of_kind(answer, "offload_activations")
    # THEN the wait is the cost; it is unknown for a step whose GPU waits for its host, AND the advice explains this
    assert advice["gpu_ns"] > 0
    assert advice["cost_ns"] == (None if answer["waits_for_host"] else advice["gpu_ns"])
    assert "The bus carries" in advice["because"] and "waits for the rest" in advice["because"]


FOLLOWED = [
    ("attention", "attention_weights"),
    ("gpt", "offload_activations"),
    ("resnet", "offload_activations"),
    ("llama-lora", "offload_activations"),
    ("resnet-50", "offload_activations"),
    ("words", "chunked_loss"),
    ("words", "offload_optimizer_state"),
    ("words", "settings"),
    ("gradients", "gradients"),
    ("optimizer", "fused_optimizer"),
    ("lengths", "settings"),
]
# In other tests, of this file and of `test_graph_pools.py` and `test_framework_advice.py`.
FOLLOWED_ELSEWHERE = {"checkpoint", "context", "workspaces", "share_pool", "evaluation_results", "leak"}


def test_the_code_of_every_kind_of_advice_runs_in_a_test():
    # GIVEN the kinds of advice that the rules give; THEN a test follows each
    rules = (ROOT / "predict/src/advice/rules").glob("*.rs")
    kinds = {kind for rule in rules for kind in re.findall(r"\bkind: Kind::(\w+)", rule.read_text())}
    kinds = {re.sub(r"(?<!^)(?=[A-Z])", "_", kind).lower() for kind in kinds}
    assert kinds == FOLLOWED_ELSEWHERE | {kind for _, kind in FOLLOWED}


@pytest.mark.parametrize(("kind", "advised"), FOLLOWED)
def test_a_change_gives_the_predicted_peak(memlab, recorded, kind, advised):
    # GIVEN advice on the recording of a training run
    trace, before = recorded(kind)
    advice = of_kind(advise(memlab, trace), advised)
    # WHEN the program follows the advice
    after = following(memlab, kind, advice)[advice["figure"]]
    # THEN its peak is the predicted one, within 3 %, AND lower than before
    assert after == pytest.approx(advice["bytes_after"], rel=0.03)
    assert after < before[advice["figure"]]


@pytest.mark.parametrize(("kind", "share"), [("gpt", 1.9), ("gpt", 0.6), ("resnet", 1.5), ("llama-lora", 0.5)])
def test_a_predicted_batch_fits(memlab, recorded, kind, share):
    # GIVEN training, AND a target above or below its peak
    trace, before = recorded(kind)
    target = int(before["allocated"] * share)
    # WHEN memlab computes the batch that fits
    batch = advise(memlab, trace, "--target", f"{target}B")["batch"]
    # THEN its peak is just below the target, AND a clearly larger batch exceeds it
    factor = batch["percent"] / 100
    assert (factor > 1) == (share > 1)
    assert target * 0.98 < batch["bytes_after"] <= target
    scales = (factor, factor * 1.15)
    fitting, larger = memlab.each(*((PROGRAM, kind, "--scale", scale) for scale in scales))
    assert target * 0.94 < fitting["allocated"] <= target * 1.01
    assert larger["allocated"] > target


@pytest.mark.parametrize("kind", ["gpt", "words", "gradients"])
def test_combined_changes_give_the_predicted_peak(memlab, recorded, kind):
    # GIVEN advice on the recording of a training run with a combination of several pieces
    trace, _ = recorded(kind)
    answer = advise(memlab, trace)
    together = answer["together"]
    pieces = [of_kind(answer, name) for name in together["kinds"]]
    # THEN no single piece saves as much
    assert all(together["bytes_after"] < piece["bytes_after"] for piece in pieces)
    # WHEN the program follows all of them
    after = following(memlab, kind, *pieces)["allocated"]
    # THEN its peak is the predicted one, within 3 %
    assert after == pytest.approx(together["bytes_after"], rel=0.03)


def test_the_cheapest_pieces_that_reach_a_target_are_named(memlab, recorded):
    # GIVEN training, AND a target that only a combination of pieces reaches
    trace, _ = recorded("gradients")
    without_target = advise(memlab, trace)
    alone = min(piece["bytes_after"] for piece in without_target["advice"] if piece["figure"] == "allocated")
    target = (alone + without_target["together"]["bytes_after"]) // 2
    # WHEN memlab advises on it
    answer = advise(memlab, trace, "--target", f"{target}B")
    # THEN it names more than one piece, AND the program that follows them stays within the target
    assert len(answer["reaching"]["kinds"]) > 1 and answer["reaching"]["bytes_after"] <= target
    pieces = [of_kind(answer, name) for name in answer["reaching"]["kinds"]]
    assert following(memlab, "gradients", *pieces)["allocated"] <= target * 1.03


def test_a_leak_is_named_by_its_line(memlab, recorded):
    # GIVEN training that keeps the results of an evaluation with gradients; THEN the advice names the holder
    trace, _ = recorded("leak")
    advice = of_kind(advise(memlab, trace), "leak")
    assert "advised.py" in advice["where"] or "planned.py" in advice["where"]
    assert advice["how"]


@pytest.mark.parametrize("mode", ["evaluate", "train"])
def test_stopping_a_leak_gives_the_predicted_peak(memlab, mode):
    # GIVEN a program that keeps its outputs, allocated by a line that also allocates temporaries
    program = PROGRAMS / "kept_results.py"
    leaking = memlab.python(program, mode, "keep")
    assert leaking.code == 0, leaking.errors
    # WHEN the leak is fixed
    advice = of_kind(advise(memlab, leaking.trace), "leak")
    fixed = memlab.run(PYTHON, program, mode, preload=False)
    # THEN the peak is the predicted one: temporaries do not count as leaked
    assert advice["bytes_after"] == int(fixed.output)
    assert advice["saved_bytes"] == int(leaking.output) - int(fixed.output) > 0


OUT_OF_MEMORY = "import torch; torch.empty(64 << 30, dtype=torch.uint8, device='cuda')"
BY_THE_DRIVER = """
import ctypes, torch
torch.cuda.synchronize()
ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1 << 20))
"""


@pytest.mark.parametrize(
    ("program", "said"),
    [(OUT_OF_MEMORY, "first allocation ran out of memory"), (BY_THE_DRIVER, "allocated GPU memory by other means")],
)
def test_gpu_use_without_allocations_is_recognised(memlab, program, said):
    # GIVEN a program that uses the GPU, but allocates nothing through PyTorch
    trace = memlab.python("-c", program).trace
    # WHEN memlab advises on it
    command = [memlab.command, "advise", trace]
    done = subprocess.run(command, capture_output=True, text=True, env=memlab.environment())
    # THEN the error gives the reason, and does not claim that the program used no GPU
    assert done.returncode != 0
    assert said in done.stderr and "did not use a GPU" not in done.stderr


def test_useless_changes_are_listed_as_tried(memlab, recorded):
    # GIVEN training whose peak is in the optimizer's step; THEN checkpointing is listed as tried, and not advised
    trace, _ = recorded("optimizer")
    answer = advise(memlab, trace)
    assert "checkpoint" in {tried["kind"] for tried in answer["tried"]}
    assert "checkpoint" not in {advice["kind"] for advice in answer["advice"]}


def test_the_report_has_a_chapter_on_it(memlab, recorded):
    # GIVEN a recorded training run; THEN its report contains the command's advice, as text, page and JSON
    trace, _ = recorded("gpt")
    command = [memlab.command, "report", trace]
    text = subprocess.run([*command, "--full"], capture_output=True, text=True, env=memlab.environment()).stdout
    assert "Advice for the peak of cuda:0, " in text and "partial(checkpoint" in text
    page = subprocess.run([*command, "--html", "-"], capture_output=True, text=True, env=memlab.environment()).stdout
    assert '<section id="advice">' in page and "partial(checkpoint" in page
    assert memlab.report(trace)["advice"] == advise(memlab, trace)["advice"]


def test_smaller_workspaces_save_the_predicted_bytes(memlab, recorded):
    # GIVEN matrix products on many streams, each with a cuBLAS workspace
    trace, before = recorded("streams")
    # WHEN the advice on them is followed; THEN the peak is the predicted one, within 3 %
    advice = of_kind(advise(memlab, trace), "workspaces")
    after = following(memlab, "streams", advice)
    assert after["allocated"] == pytest.approx(advice["bytes_after"], rel=0.03)
    assert after["allocated"] < before["allocated"] / 2


def test_a_device_that_is_used_by_mistake_is_named(memlab):
    # GIVEN training on the second device, and a tensor created on the first one on the way
    program = PROGRAMS / "second_device.py"
    done = memlab.python(program, devices=2)
    assert done.code == 0, done.errors
    # THEN the advice names the first device, the line, AND NVML's figure of the process's memory there
    advice = of_kind(advise(memlab, done.trace), "context")
    device = memlab.report(done.trace)["devices"][0]
    assert (advice["where"], advice["figure"], advice["saved_bytes"]) == ("cuda:0", "used", device["peak_used_bytes"])
    line = next(number for number, text in enumerate(program.read_text().splitlines(), 1) if text.startswith("start = "))
    assert f"second_device.py:{line} <module>" in advice["because"]
    done.trace.unlink()
    # AND when the advice is followed, the process uses the second only
    after = memlab.python(program, advice["how"], devices=2)
    assert after.code == 0, after.errors
    assert [device["index"] for device in memlab.report(after.trace)["devices"]] == [1]


def test_nothing_is_advised_if_nothing_helps(memlab, recorded):
    # GIVEN a program that keeps nothing unnecessarily, AND suitable settings of its allocator and libraries
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    trace, _ = recorded("inference", **settings)
    # THEN memlab advises nothing
    assert advise(memlab, trace)["advice"] == []
