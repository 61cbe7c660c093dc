"""Training that is offloaded from the card and restored computes the same results."""

import json
import math
import random
import subprocess
import sys
import time
from pathlib import Path

import control
import pytest
from waiting import wait_until

PROGRAMS = Path(__file__).parent / "programs"

MOVED = PROGRAMS / "moved.py"


def train(memlab, *arguments, env=None, **options):
    """Starts the training under memlab; returns the process once it trains."""
    process = memlab.start(sys.executable, MOVED, *arguments, env={"MEMLAB_OFFLOAD": "1", **(env or {})}, **options)
    assert process.stdout.readline() == "ready\n", process.communicate()
    return process


def undisturbed(memlab, *arguments, steps):
    """Checksums of the first steps of the same training alone; on the simulated GPU later steps are equal."""
    run = memlab.python(MOVED, "/", "--steps", steps, *arguments, preload=False)
    assert run.code == 0, run.errors
    return json.loads(run.output.splitlines()[-1])


def end(process, until):
    until.touch()
    output, errors = process.communicate(timeout=control.PATIENCE_S)
    assert (process.returncode, errors) == (0, "")
    return json.loads(output)


@pytest.mark.parametrize(
    ("arguments", "env", "cycles"),
    [
        ([], {}, 20),
        (["--graph"], {}, 20),
        ([], {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, 20),
        ([], {}, 100),
    ],
    ids=["eager", "graph", "expandable_segments", "many"],
)
def test_cycles_at_random_moments(memlab, arguments, env, cycles):
    # GIVEN training with AdamW
    expected = undisturbed(memlab, *arguments, steps=2)
    assert expected[0] == expected[1]
    until = memlab.folder / "enough"
    process = train(memlab, until, "--steps", 2, *arguments, env=env)
    moments = random.Random(4)
    # WHEN it is offloaded and restored at random moments
    for _ in range(cycles):
        time.sleep(moments.uniform(0, 0.02))
        before = control.status(process.pid)
        offload = control.operate(process.pid, "offload")
        away = control.status(process.pid)
        # THEN all of it is offloaded, and restored
        assert (away["state"], away["device_bytes"]) == ("offloaded", 0)
        assert away["host_bytes"] == offload["total_bytes"] == offload["done_bytes"] > 0
        control.operate(process.pid, "restore")
        back = control.status(process.pid)
        assert (back["state"], back["host_bytes"]) == ("resident", 0)
        assert back["device_bytes"] >= away["host_bytes"] or back["device_bytes"] >= before["device_bytes"] // 2
    # AND every step computes with the bytes of an undisturbed run
    seen = end(process, until)
    assert len(seen) > 1
    assert all(step == expected[0] for step in seen)


@pytest.mark.long
def test_host_memory_can_be_ready_before_the_first_offload(memlab):
    # GIVEN training started with --offload=ready, whose memory grows as it begins
    until = memlab.folder / "enough"
    process = train(memlab, until, "--ballast", 100, env={"MEMLAB_OFFLOAD": "ready"})
    # WHEN it stops growing
    said = process.stderr.readline()
    # THEN memlab reports the pinned host memory, and pins enough for the whole training
    assert "of host memory are pinned for an offload (--offload=ready)" in said, said

    def is_enough():
        status = control.status(process.pid)
        return status["arena_bytes"] >= status["device_bytes"] > 100 << 20

    wait_until(is_enough)
    before = control.status(process.pid)
    # AND the first offload, and the next, pin no more
    for _ in range(2):
        moved = control.operate(process.pid, "offload")["total_bytes"]
        away = control.status(process.pid)
        assert (away["arena_bytes"], away["host_bytes"]) == (before["arena_bytes"], moved)
        control.operate(process.pid, "restore")
    # AND the training has the same results
    expected = undisturbed(memlab, "--ballast", 100, steps=1)[0]
    assert all(step == expected for step in end(process, until))


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"MEMLAB_HOST_MAX": "32MiB"}, "MEMLAB_HOST_MAX allows 32.0 MiB; 0 B are pinned"),
        ({"SIMGPU_FAIL": "cuMemHostRegister:2"}, "the driver did not pin"),
    ],
)
def test_a_training_goes_on_where_host_memory_cannot_be_made_ready(memlab, env, says):
    # GIVEN training started with --offload=ready, and less host memory than its first tensor needs
    until = memlab.folder / "enough"
    process = train(memlab, until, "--first", 100, env={"MEMLAB_OFFLOAD": "ready", **env})
    # THEN one line reports it
    said = process.stderr.readline()
    assert said.startswith("memlab: --offload=ready: ")
    assert says in said
    assert "and the first offload will take longer" in said
    # AND the training continues
    assert end(process, until)


def test_the_card_is_free_while_the_training_is_offloaded(memlab):
    # GIVEN training that fills most of a card
    until = memlab.folder / "enough"
    process = train(memlab, until, "--ballast", 320, memory="1GiB")
    # WHEN it is offloaded
    control.operate(process.pid, "offload")
    status = control.status(process.pid)
    # THEN only its context and allocations too small to move stay on the card, as NVML confirms
    (trace,) = memlab.folder.glob("*.jsonl")

    def used():
        lines = [line for line in trace.read_bytes().split(b"\n") if line.startswith(b'["used"')]
        return json.loads(lines[-1])[3] if lines else math.inf

    wait_until(lambda: used() <= (256 << 20) + status["fixed_bytes"] + (32 << 20))
    assert used() >= 256 << 20
    # AND memlab's own figures agree: no memory is attributed to other processes
    device = memlab.report(trace)["devices"][0]
    assert device["host_bytes"] == status["host_bytes"]
    assert abs(device["used_bytes"] - used()) < 4 << 20, device
    control.operate(process.pid, "restore", free_host=True)
    # AND the host memory can be released too
    assert control.status(process.pid)["arena_bytes"] == 0
    end(process, until)


@pytest.mark.long
def test_two_trainings_take_turns(memlab):
    # GIVEN a card with room for one of two trainings
    flags = ["--ballast", "280"]
    expected = undisturbed(memlab, *flags, steps=1)[0]
    until = [memlab.folder / "first", memlab.folder / "second"]
    training = [sys.executable, MOVED, "$1", "--count", "$1.steps", *flags]
    words = " ".join(f'"{word}"' for word in training)
    script = f"""
        train() {{ {words} > "$1.out" & echo $!; }}
        train {until[0]}; read go; train {until[1]}; wait
    """
    # The two contexts use most of the card without using the machine's memory.
    env = {"MEMLAB_OFFLOAD": "1", "SIMGPU_CONTEXT": "3840MiB"}
    card = memlab.start("sh", "-c", script, memory="8GiB", env=env, stdin=subprocess.PIPE)

    def started(number):
        pid = int(card.stdout.readline())
        out = Path(f"{until[number]}.out")

        def is_ready():
            assert control.is_running(pid), f"{out} does not begin"
            return out.exists() and out.read_text().startswith("ready")

        wait_until(is_ready)
        return pid

    def trains(number):
        """Waits for another step of the training."""
        steps = Path(f"{until[number]}.steps")
        before = steps.stat().st_size
        wait_until(lambda: steps.stat().st_size > before)

    first = started(0)
    # WHEN the first is offloaded, THEN the second has room
    control.operate(first, "offload")
    card.stdin.write("go\n")
    card.stdin.flush()
    second = started(1)
    # AND meanwhile every attempt to restore the first fails, and leaves it offloaded and complete
    for _ in range(3):
        control.ask(first, command="restore")
        outcome = control.finish(first)
        assert (outcome["phase"], outcome["retryable"]) == ("failed", True)
        assert "no room" in outcome["error"]
        assert control.status(first)["state"] == "offloaded"
    # AND they alternate
    for _ in range(3):
        control.operate(second, "offload")
        control.operate(first, "restore")
        trains(0)
        control.operate(first, "offload")
        control.operate(second, "restore")
        trains(1)
    # THEN both end with the right bytes
    until[1].touch()

    def is_restored():
        control.ask(first, command="restore")
        return control.finish(first)["phase"] == "done"

    wait_until(is_restored)
    until[0].touch()
    _, errors = card.communicate(timeout=control.PATIENCE_S)
    assert (card.returncode, errors) == (0, "")
    for path in until:
        seen = json.loads(Path(f"{path}.out").read_text().splitlines()[-1])
        assert seen
        assert all(step == expected for step in seen)


def test_pages_are_offloaded_while_the_training_runs(memlab):
    # GIVEN a training run, and its optimizer's memory from its trace
    expected = undisturbed(memlab, steps=1)[0]
    until = memlab.folder / "enough"
    process = train(memlab, until)
    page = control.status(process.pid)["page_bytes"]
    moments = random.Random(5)
    spans = control.segments(next(memlab.folder.glob("*.jsonl")))
    for _ in range(10):
        # WHEN random pages of it are repeatedly moved to host memory while the training runs
        for _ in range(moments.randint(1, 3)):
            start, end_ = moments.choice(spans)
            pages = range(start, end_ - page + 1, page)
            ranges = [[at, page] for at in pages if moments.random() < 0.4]
            if not ranges:
                continue
            control.ask(process.pid, command="offload", ranges=ranges)
            outcome = control.finish(process.pid)
            assert outcome["phase"] == "done" or "none of this memory can be moved" in outcome["error"], outcome
        status = control.status(process.pid)
        assert status["state"] in ("partly_offloaded", "resident")
        # THEN they count as host memory until they are restored, or everything is offloaded and restored
        if moments.random() < 0.5:
            control.operate(process.pid, "offload")
            assert control.status(process.pid)["device_bytes"] == 0
        if control.status(process.pid)["host_bytes"]:
            control.operate(process.pid, "restore")
        assert control.status(process.pid)["host_bytes"] == 0
    # AND every step sees the right bytes
    seen = end(process, until)
    assert all(step == expected for step in seen)


def test_the_c_interface(memlab):
    # GIVEN a program that calls the C functions of include/memlab.h THEN they work as documented
    run = memlab.python(PROGRAMS / "in_process.py", env={"MEMLAB_OFFLOAD": "1"})
    assert (run.code, run.output, run.errors) == (0, "done\n", "")
