"""Under a limit, a program behaves as on a card of that size. With spilling allowed, it continues beyond the limit."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import control
import pytest
from conftest import RELEASE
from trace_reader import Trace

PROGRAMS = Path(__file__).parent / "programs"

MIB = 1 << 20
CONTEXT = 256 * MIB
PROGRAM = PROGRAMS / "limited.py"
NATIVE, EXPANDABLE, ASYNC = "", "expandable_segments:True", "backend:cudaMallocAsync"


def allocator(settings):
    return {"PYTORCH_CUDA_ALLOC_CONF": settings} if settings else {}


def limited(memlab, *command, limit, **options):
    """Runs a program on a large card under a limit."""
    env = {"MEMLAB_LIMIT": limit} | options.pop("env", {})
    run = memlab.python(PROGRAM, *command, env=env, **options)
    assert run.code == 0, run.errors
    assert "memlab:" not in run.errors
    return run


def on_a_small_card(memlab, *command, size, **options):
    """Runs it on a card of that size, without memlab."""
    run = memlab.python(PROGRAM, *command, memory=size, preload=False, **options)
    assert run.code == 0, run.errors
    return run


def sampled(trace):
    """The maxima of NVML's figures of this process, and of the card."""
    return max(event[5] or 0 for event in Trace(trace).events if event[0] == "used")


def ooms(trace):
    """Device, request and PyTorch's held bytes, for each out-of-memory error."""
    return [event[3:7] for event in Trace(trace).events if event[0] == "oom"]


def definitions(trace, kind):
    records = [json.loads(line) for line in trace.read_bytes().replace(b"\0", b"").splitlines()]
    return [record for record in records if isinstance(record, dict) and kind in record]


def lines(run):
    return [json.loads(line) for line in run.output.splitlines()]


@pytest.mark.parametrize("settings", [NATIVE, EXPANDABLE, ASYNC])
def test_out_of_memory_at_the_same_allocation(memlab, settings):
    # GIVEN training that keeps more with every step, on a card of 1 GiB
    alone = lines(on_a_small_card(memlab, "train", size="1GiB", env=allocator(settings)))
    # WHEN it runs on a card of 8 GiB under a limit of 1 GiB
    run = limited(memlab, "train", 900, limit="1GiB", env=allocator(settings))
    # THEN it runs out of memory at the same allocation of the same line, with the same memory and message
    assert lines(run) == alone
    failure, most = alone
    assert failure["step"] > 10 and failure["lines"]
    assert most["most"] + CONTEXT <= 1024 * MIB
    # AND the card never held more for the program
    assert 900 * MIB <= sampled(run.trace) <= 1024 * MIB
    # AND the trace has the out-of-memory events, and the same figures of the card as without a limit
    if settings == NATIVE:
        small = memlab.python(PROGRAM, "train", memory="1GiB", env={"MEMLAB_OUTPUT": "small.trace"})
        assert ooms(memlab.folder / "small.trace") == ooms(run.trace) != [], small.errors
        assert [record["total_bytes"] for record in definitions(run.trace, "device")] == [8192 * MIB]


@pytest.mark.parametrize("settings", [NATIVE, EXPANDABLE])
def test_the_allocator_retries_at_the_limit(memlab, settings):
    # GIVEN a program whose cache is full of blocks of the wrong size
    alone = lines(on_a_small_card(memlab, "fragments", size="768MiB", env=allocator(settings)))
    run = limited(memlab, "fragments", limit="768MiB", env=allocator(settings))
    # THEN PyTorch releases its cache at the limit and continues, as on a full card
    assert lines(run) == alone
    stats, most = alone
    assert stats["ooms"] == 0
    assert stats["retries"] > 0 or settings == EXPANDABLE
    assert most["most"] + CONTEXT <= 768 * MIB


def test_every_kind_of_memory(memlab):
    # GIVEN a program that allocates memory of every kind until none is left, frees some, and allocates more
    program = memlab.folder / "limited"
    subprocess.run(
        ["cc", "-O1", "-o", program, PROGRAMS / "limited.c", "-L", RELEASE, "-lsimgpu_cudart", "-ldl", "-lpthread"],
        check=True,
    )
    alone = memlab.run(program, "kinds", memory="1GiB", preload=False)
    assert (alone.code, alone.errors) == (0, "")
    assert all(kind in alone.output for kind in "dpmaqAc.")
    # WHEN it runs under a limit, THEN the same allocations succeed and fail
    run = memlab.run(program, "kinds", env={"MEMLAB_LIMIT": "1GiB"})
    assert (run.code, run.output, run.errors) == (0, alone.output, "")
    # AND the same without NVML's figures, where the size of the context must be measured
    libraries = memlab.folder / "libraries"
    libraries.mkdir()
    for name in ("cuda", "cudart", "cupti", "libraries", "nccl"):
        os.symlink(RELEASE / f"libsimgpu_{name}.so", libraries / f"libsimgpu_{name}.so")
    shutil.copy(RELEASE / "libsimgpu_cudart.so", libraries / "libsimgpu_nvml.so")  # a library without NVML's functions
    run = memlab.run(program, "kinds", env={"MEMLAB_LIMIT": "1GiB", "SIMGPU_LIBS": libraries})
    assert (run.code, run.output, run.errors) == (0, alone.output, "")


@pytest.mark.parametrize("on_limit", ["oom", "spill"])
def test_threads_at_the_limit(memlab, on_limit):
    # GIVEN a program whose threads allocate and free at the same time, beyond the available memory
    program = memlab.folder / "limited"
    subprocess.run(
        ["cc", "-O1", "-o", program, PROGRAMS / "limited.c", "-L", RELEASE, "-lsimgpu_cudart", "-ldl", "-lpthread"],
        check=True,
    )
    limit = {"MEMLAB_LIMIT": "512MiB", "MEMLAB_ON_LIMIT": on_limit}
    run = memlab.run(program, "threads", "threads.jsonl", env=limit | {"MEMLAB_OUTPUT": "threads.jsonl"})
    assert (run.code, run.errors) == (0, "")
    most, free = run.output.splitlines()
    # THEN together they never exceed the limit, and no byte is lost
    first = 2 * MIB
    room = 512 * MIB - CONTEXT - first
    assert free == f"{room} of {512 * MIB}"
    if on_limit == "oom":
        assert room * 0.9 < int(most) <= room
    else:
        # AND with spilling allowed, every allocation succeeds, and only the excess is in host memory
        assert int(most) > room
    # AND NVML never reports more
    assert sampled(run.trace) <= 512 * MIB


def test_the_program_sees_a_card_of_the_limits_size(memlab):
    # GIVEN two cards, one of them with a limit
    small = lines(on_a_small_card(memlab, "shown", size="1GiB"))
    large = lines(on_a_small_card(memlab, "shown", size="8GiB"))
    run = limited(memlab, "shown", limit="1:1GiB", devices=2)
    # THEN that card looks like one of the limit's size, and the other is unchanged
    assert lines(run) == large + small
    # AND a limit beyond the card's size changes nothing
    assert lines(limited(memlab, "shown", limit="80GiB", env={"MEMLAB_OUTPUT": "large.jsonl"})) == large


def test_limits_of_devices(memlab):
    # GIVEN three cards: separate limits for the first two, and one for all
    run = limited(memlab, "devices", limit="1GiB,0:512MiB,1:768MiB", devices=3)
    for device, limit in enumerate([512, 768, 1024]):
        count, allocated, reserved, free, total = lines(run)[device]
        # THEN each is filled up to its limit
        assert total == limit * MIB
        assert count == (limit * MIB - CONTEXT) // (20 * MIB)
        assert reserved == allocated == count * 20 * MIB
        assert free == limit * MIB - CONTEXT - reserved


def test_loaded_late(memlab):
    # GIVEN a program that loads libmemlab after it has allocated memory, as a notebook does
    run = limited(memlab, "late", memlab.library, limit="1GiB", preload=False)
    count, *_, free, total = lines(run)[0]
    # THEN that memory counts, and the limit applies to later allocations
    assert total == 1024 * MIB
    assert count == (1024 * MIB - CONTEXT - 100 * MIB) // (20 * MIB)
    assert free == 1024 * MIB - CONTEXT - (100 + count * 20) * MIB


@pytest.mark.parametrize("settings", [NATIVE, EXPANDABLE, ASYNC])
def test_spilling(memlab, settings):
    # GIVEN a program that needs half as much again as the limit
    card = {"SIMGPU_CONTEXT": "64MiB"} | allocator(settings)
    alone = on_a_small_card(memlab, "patterns", 384, size="8GiB", env=card)
    # WHEN the excess may spill
    run = limited(memlab, "patterns", 384, 251, limit="320MiB", env={"MEMLAB_ON_LIMIT": "spill"} | card)
    # THEN every byte is the same as without a limit
    assert lines(run)[:2] == lines(alone)[:2]
    if settings != ASYNC:
        assert lines(run) == lines(alone)
    # AND in the trace spilled memory counts as allocated but not as used, and everything is freed
    live, most, moved = {}, 0, [0]
    for event in Trace(run.trace).events:
        if event[0] == "d+" and event[3] == 0:
            live[event[6], event[4]] = event[5]
            most = max(most, sum(live.values()))
        elif event[0] == "d-":
            live.pop((event[5], event[4]), None)
        elif event[0] == "moved":
            moved.append(event[3])
    assert not live
    assert most >= 384 * MIB
    assert max(moved) >= 64 * MIB
    # AND the card's peak is close to the limit, but never above it
    assert 250 * MIB < sampled(run.trace) <= 320 * MIB


def test_the_cache_is_released_before_anything_spills(memlab):
    # GIVEN a program that fits if its cache is released
    env = {"MEMLAB_ON_LIMIT": "spill"}
    alone = lines(on_a_small_card(memlab, "fragments", size="768MiB"))
    run = limited(memlab, "fragments", limit="768MiB", env=env)
    # THEN nothing spills
    assert lines(run) == alone
    assert not [event for event in Trace(run.trace).events if event[0] == "moved"]


@contextmanager
def commanded(memlab, **env):
    """A program that runs commands, and the function that sends them."""
    with memlab.start(sys.executable, PROGRAM, "obey", stdin=subprocess.PIPE, env=env) as process:

        def tell(line):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        assert process.stdout.readline() == "ready\n", process.communicate()
        yield process.pid, tell
        _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")


def limits(pid):
    return control.ask(pid, command="status")["limits"]


def test_limits_change_while_the_program_runs(memlab):
    # GIVEN a program without a limit
    with commanded(memlab) as (pid, tell):
        assert tell("take 300") == "taken"
        assert limits(pid) == []
        # WHEN a limit is set, THEN the memory that the program holds counts
        answer = control.ask(pid, command="limit", device=0, bytes=1024 * MIB, on_limit="oom")
        entry = {"device": 0, "limit_bytes": 1024 * MIB, "used_bytes": 300 * MIB + CONTEXT, "spilled_bytes": 0}
        assert answer == {"ok": True, "limits": [entry | {"on_limit": "oom"}]}
        assert json.loads(tell("free")) == [1024 * MIB - CONTEXT - 300 * MIB, 1024 * MIB]
        assert tell("take 500") == "refused"
        assert tell("take 468") == "taken"
        assert tell("take 2") == "refused"
        # WHEN spilling is allowed, THEN memory spills, and the control socket reports it
        control.ask(pid, command="limit", bytes=1024 * MIB, on_limit="spill")
        assert tell("take 100") == "taken"
        (status,) = limits(pid)
        assert (status["used_bytes"], status["spilled_bytes"]) == (1024 * MIB, 100 * MIB)
        assert tell("drop") == "dropped"
        (status,) = limits(pid)
        assert (status["used_bytes"], status["spilled_bytes"]) == (CONTEXT, 0)
        # WHEN the limit is below the held memory, THEN that memory stays, and no more can be allocated
        assert tell("take 300") == "taken"
        control.ask(pid, command="limit", bytes=400 * MIB, on_limit="oom")
        assert json.loads(tell("free")) == [0, 400 * MIB]
        assert tell("take 2") == "refused"
        # WHEN the limit is removed, THEN the whole card is available again
        assert control.ask(pid, command="limit", bytes=None)["limits"] == []
        assert tell("take 2000") == "taken"
        assert json.loads(tell("free"))[1] == 8192 * MIB
        # AND invalid requests are refused with a hint
        for wrong in ({"bytes": "much"}, {"bytes": 0}, {"device": 64, "bytes": 1}, {"on_limit": "spill"}):
            with pytest.raises(control.Refused, match="must be"):
                control.ask(pid, command="limit", **wrong)


def test_small_blocks_of_libraries_stay_on_the_card(memlab):
    # GIVEN a program that fills its limit, and may spill
    with commanded(memlab, MEMLAB_LIMIT="640MiB", MEMLAB_ON_LIMIT="spill") as (pid, tell):
        assert tell(f"take {640 - CONTEXT // MIB}") == "taken"
        # WHEN a library takes a small block, THEN the card holds it: on the host it would slow each kernel that uses it
        assert tell("library 16") == "0"
        entry = {"used_bytes": 640 * MIB + (16 << 10), "spilled_bytes": 0}
        assert limits(pid)[0].items() >= entry.items()
        # AND larger blocks spill
        assert tell("library 4096") == "0"
        assert limits(pid)[0]["spilled_bytes"] == 4 * MIB
        # AND when memory is freed, the limit is kept again
        assert tell("drop") == "dropped"
        assert tell(f"take {640 - CONTEXT // MIB}") == "taken"
        assert limits(pid)[0]["used_bytes"] <= 640 * MIB


def moved_by(memlab, commands, **env):
    """Returns a program's answers to commands with a card of 8 GiB that may spill, and the bytes on the host over time."""
    trace = memlab.folder / "full.jsonl"
    with commanded(memlab, MEMLAB_ON_OOM="spill", MEMLAB_OUTPUT=str(trace), **env) as (_, tell):
        said = [tell(command) for command in commands]
    return said, [event[3] for event in Trace(trace).events if event[0] == "moved"]


def test_a_full_card_spills_only_what_it_has_no_room_for(memlab):
    # GIVEN a program with all but 300 MiB of a card, which keeps 256 MiB free for kernels
    card = 8192 - CONTEXT // MIB
    # WHEN it takes more, THEN that lies on the host; but memory that cannot be there gets the card's last
    said, moved = moved_by(memlab, [f"take {card - 300}", "library 102400", "managed 190"])
    assert said == ["taken", "0", "0"]
    assert moved[0] == max(moved) == 100 * MIB
    # GIVEN a pool that has grown to most of the card, and is unused; WHEN the program takes memory, THEN the pool has it
    takes = ["take 900"] * ((card - 300) // 900)
    pool = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
    said, moved = moved_by(memlab, [*takes, "forget", *takes], **pool)
    assert said == ["taken"] * len(takes) + ["forgotten"] + ["taken"] * len(takes)
    assert not moved


def test_a_limit_and_offloading(memlab):
    # GIVEN a program that can be offloaded and has spilled some of its memory over its limit
    env = {"MEMLAB_OFFLOAD": "1", "MEMLAB_LIMIT": "640MiB", "MEMLAB_ON_LIMIT": "spill"}
    with commanded(memlab, **env) as (pid, tell):
        assert [tell("take 200") for _ in range(3)] == ["taken"] * 3
        sums = tell("sums")
        assert control.status(pid)["host_bytes"] == limits(pid)[0]["spilled_bytes"] == 400 * MIB
        assert limits(pid)[0]["used_bytes"] == CONTEXT + 200 * MIB
        # WHEN all of it is offloaded and restored
        control.operate(pid, "offload")
        assert limits(pid)[0]["used_bytes"] == CONTEXT
        # THEN memory within the limit comes back, and the bytes are the same
        assert "stay in host memory" in control.operate(pid, "restore")["note"]
        assert limits(pid)[0]["used_bytes"] == CONTEXT + 200 * MIB
        assert tell("sums") == sums
        # WHEN the limit is raised, THEN more fits
        control.ask(pid, command="limit", bytes=800 * MIB)
        control.operate(pid, "restore")
        assert limits(pid)[0] == {
            "device": 0,
            "limit_bytes": 800 * MIB,
            "used_bytes": CONTEXT + 400 * MIB,
            "spilled_bytes": 200 * MIB,
            "on_limit": "spill",
        }
        assert tell("sums") == sums
        # AND new allocations spill again, and offloaded memory makes room
        assert json.loads(tell("free")) == [800 * MIB - CONTEXT - 400 * MIB, 800 * MIB]
        first = json.loads(tell("where"))
        control.operate(pid, "offload", ranges=[[first, 200 * MIB]])
        assert json.loads(tell("free"))[0] == 800 * MIB - CONTEXT - 200 * MIB
        assert tell("take 300") == "taken"
        assert limits(pid)[0]["used_bytes"] == CONTEXT + 500 * MIB
        assert tell("take 100") == "taken"
        assert limits(pid)[0]["used_bytes"] == CONTEXT + 500 * MIB
        # AND everything is freed
        assert tell("drop") == "dropped"
        assert (limits(pid)[0]["used_bytes"], limits(pid)[0]["spilled_bytes"]) == (CONTEXT, 0)


@pytest.mark.parametrize(
    ("name", "text", "wrong"),
    [
        ("LIMIT", "lots", '"lots" is not a size'),
        ("LIMIT", "8", "8 has no unit; did you mean 8GiB?"),
        ("LIMIT", "0:8GiB,1:", '"" is not a size'),
        ("ON_LIMIT", "swap", "=swap is neither oom nor spill"),
    ],
)
def test_an_invalid_setting_is_reported(memlab, name, text, wrong):
    # GIVEN an invalid limit, WHEN a program runs, THEN it runs without a limit and memlab reports the error in one line
    run = memlab.python(PROGRAM, "shown", env={f"MEMLAB_{name}": text})
    assert run.code == 0
    assert [f"MEMLAB_{name}" in line and wrong in line for line in run.errors.splitlines()] == [True]
    assert lines(run)[0][0] == 8192 * MIB
