"""`memlab advise`: what it says of the peak is what PyTorch takes when the advice is followed, on the simulated card."""

import json
import subprocess

import pytest
from conftest import PROGRAMS, PYTHON

PROGRAM = PROGRAMS / "advised.py"
TIMED = {"MEMLAB_TIME": "1"}


def recorded(memlab, kind, env=TIMED):
    done = memlab.python(PROGRAM, kind, env=env)
    assert done.code == 0, done.errors
    return done.trace, json.loads(done.output.splitlines()[-1])


def advise(memlab, trace, *options):
    command = [memlab.command, "advise", "--json", *options, trace]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=memlab.environment())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def of_kind(answer, kind):
    (advice,) = [advice for advice in answer["advice"] if advice["kind"] == kind]
    return advice


def following(memlab, kind, advice):
    """PyTorch's own peaks when the program does as it is told."""
    env = {"ADVICE": json.dumps(advice)}
    if advice["how"].startswith("export "):
        name, _, value = advice["how"].removeprefix("export ").partition("=")
        env[name] = value
    done = memlab.run(PYTHON, PROGRAM, kind, preload=False, env=env)
    assert done.code == 0, done.errors
    return json.loads(done.output.splitlines()[-1])


@pytest.mark.parametrize("kind", ["gpt", "gpt-eager", "resnet", "unet", "llama-lora", "lengths"])
def test_checkpointing_gives_the_peak_that_it_is_said_to_give(memlab, kind):
    # GIVEN a training without checkpointing, and advice on its recording
    trace, before = recorded(memlab, kind)
    answer = advise(memlab, trace)
    assert answer["peak_bytes"] == before["allocated"]
    advice = of_kind(answer, "checkpoint")
    assert advice["cost_ns"] > 0
    # WHEN the program does what is advised
    after = following(memlab, kind, advice)
    # THEN its peak is what was said, within 3 %
    assert after["allocated"] == pytest.approx(advice["bytes_after"], rel=0.03)
    assert advice["bytes_after"] == before["allocated"] - advice["saved_bytes"] < before["allocated"] * 0.8


def test_a_target_is_reached_with_as_few_modules_as_it_takes(memlab):
    # GIVEN a training, and a target that half of its blocks reach
    trace, before = recorded(memlab, "gpt")
    target = before["allocated"] * 2 // 3
    # WHEN advice is asked for
    advice = of_kind(advise(memlab, trace, "--target", f"{target}B"), "checkpoint")
    # THEN some of the blocks are enough, AND the program then keeps to the target
    assert advice["where"].startswith("blocks.") and "blocks.0 … blocks.5" not in advice["where"]
    assert following(memlab, "gpt", advice)["allocated"] <= target * 1.03


def test_without_times_the_cost_is_not_known(memlab):
    # GIVEN a recording without GPU times; THEN the advice says that it does not know what it costs
    trace, _ = recorded(memlab, "gpt", env={})
    assert of_kind(advise(memlab, trace), "checkpoint")["cost_ns"] is None


def test_where_nothing_helps_nothing_is_advised(memlab):
    # GIVEN a program that keeps nothing that it need not; THEN there is nothing to advise
    trace, _ = recorded(memlab, "inference")
    assert advise(memlab, trace)["advice"] == []
