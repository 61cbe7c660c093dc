"""A failure while memory moves loses no byte and fails none of the program's calls."""

import os
import random
import subprocess

import pytest
from control import UNHURRIED
from moving import MIB, PAGE, PROGRAMS, Console, is_right, movable, resident
from waiting import wait_until

OUT_OF_MEMORY, INVALID_VALUE = 2, 1


def test_too_little_host_memory(memlab):
    # GIVEN a host memory limit below the program's device memory
    with Console(memlab, env={"MEMLAB_HOST_MAX": "11MiB"}) as program:
        size = movable(program)
        start = program.do("at")
        # THEN nothing is moved, and the program continues
        assert "MEMLAB_HOST_MAX allows 11.0 MiB" in program.fail("offload")
        is_right(program)
        assert program.move["arena_bytes"] == 0
        # AND parts can be moved up to the limit
        program.succeed("offload", ranges=[[start, 2 * PAGE]])
        address = program.do("large.address")
        assert "MEMLAB_HOST_MAX" in program.fail("offload", ranges=[[address, 8 * MIB]])
        program.do("small.free()", "large.free()", "call('cuMemUnmap', again, PAGE)")
        program.succeed("offload")
        program.succeed("restore")
        program.do("check()")
        assert resident(program) == size - 5 * PAGE
        program.end()


@pytest.mark.parametrize(
    ("failing", "says"),
    [
        ("cuMemHostRegister:2@1", "did not pin"),
        ("cuCtxSynchronize:700@1", "could not be waited for (CUDA_ERROR_ILLEGAL_ADDRESS)"),
        ("cuStreamCreate:2@1", "copying to host memory failed (CUDA_ERROR_OUT_OF_MEMORY): nothing was moved"),
        ("cuMemcpyDtoHAsync_v2:1@3", "copying to host memory failed (CUDA_ERROR_INVALID_VALUE): nothing was moved"),
        ("cuMemUnmap:1", "did not let go"),
    ],
)
def test_an_offload_that_fails_changes_nothing(memlab, failing, says):
    with Console(memlab, env={"SIMGPU_FAIL": failing}) as program:
        size = movable(program)
        free = program.do("free_bytes()")
        assert says in program.fail("offload")
        # THEN the program continues with its memory on the device
        is_right(program)
        move = program.move
        assert (move["state"], move["device_bytes"], move["host_bytes"]) == ("resident", size, 0)
        # AND can be offloaded later
        if "@" in failing:
            program.cycle()
            is_right(program)
        assert resident(program) == size
        assert program.do("free_bytes()") == free
        program.end()


# A piece of 64 MiB is one copy. At most five copies are in flight: the first piece has left the card when the sixth begins.
PIECES = 8
HELD = f"held = [allocate(64 * MIB) for _ in range({PIECES})]"


def on_one_processor():
    """Keeps pieces whole: memlab divides host memory into one region per processor."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@pytest.mark.parametrize("nth", [6, 7, 8])
def test_an_offload_that_fails_late_is_undone(memlab, nth):
    # GIVEN a program that was offloaded before, so that each piece leaves the card as soon as it is copied
    failing = f"cuMemcpyDtoHAsync_v2:999@{PIECES + nth}"
    with Console(memlab, env={"SIMGPU_FAIL": failing}, preexec_fn=on_one_processor) as program:
        program.do(HELD)
        program.cycle()
        free = program.do("free_bytes()")
        # WHEN a copy fails
        operation = program.run("offload")
        # THEN the pieces that had left are back
        assert operation["phase"] == "failed"
        assert operation["error"] == "copying to host memory failed (CUDA_ERROR_UNKNOWN): nothing was moved"
        move = program.move
        assert (move["state"], move["device_bytes"], move["host_bytes"]) == ("resident", PIECES * 64 * MIB, 0)
        program.do("check()")
        assert program.do("free_bytes()") == free
        # AND it can be offloaded again
        program.cycle()
        program.do("check()")
        program.end()


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "before"), [("cuMemCreate", 2 * PIECES), ("cuMemMap", 2 * PIECES), ("cuMemcpyHtoDAsync_v2", PIECES)]
)
def test_an_offload_that_fails_and_cannot_be_undone_waits_for_a_restore(memlab, function, before):
    # GIVEN a card on which the last copy fails, and so does bringing back the offloaded pieces
    failing = f"cuMemcpyDtoHAsync_v2:999@{2 * PIECES},{function}:2@{before + 1}"
    with Console(memlab, env={"SIMGPU_FAIL": failing}, preexec_fn=on_one_processor) as program:
        program.do(HELD)
        program.cycle()
        # WHEN it is offloaded
        operation = program.run("offload")
        # THEN the program waits, and the operation is marked as retryable
        assert operation["phase"] == "failed" and operation["retryable"]
        assert "the program waits for a restore" in operation["error"]
        move = program.move
        assert move["state"] == "offloaded"
        assert move["device_bytes"] + move["host_bytes"] == PIECES * 64 * MIB
        assert move["host_bytes"] > 0
        # AND a restore brings everything back
        program.succeed("restore")
        program.do("check()")
        program.cycle()
        program.do("check()")
        program.end()


@pytest.mark.parametrize("nth", [1, 2, 4, 5])
def test_memory_that_cannot_be_unmapped_stays(memlab, nth):
    # GIVEN a driver that fails to unmap one of the program's mappings
    with Console(memlab, env={"SIMGPU_FAIL": f"cuMemUnmap:1@{nth}"}) as program:
        movable(program)
        # THEN the rest is moved, and a note names the unmoved part
        assert "did not let go of" in program.succeed("offload")["note"]
        assert 0 < program.move["device_bytes"] <= program.move["host_bytes"]
        program.succeed("restore")
        # AND every mapping is valid again after a restore
        is_right(program)
        program.cycle()
        is_right(program)
        program.end()


def test_work_that_outlasts_the_timeout(memlab):
    # GIVEN a device whose work ends when a file is created
    shim, until = memlab.folder / "stuck.so", memlab.folder / "ends"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, PROGRAMS / "stuck.c"], check=True)
    stuck = {"SIMGPU_HANG_SYNC": "3600s", "STUCK_UNTIL": until, "LD_PRELOAD": f"{memlab.library}:{shim}"}
    with Console(memlab, preload=False, env=stuck) as program:
        program.do("a = allocate(PAGE)")
        # THEN an offload is rolled back at its timeout, and the program continues
        assert "did not come to its end in time" in program.fail("offload", timeout_ms=100)
        program.do("check()", "a.write()", "check()")
        assert "of an earlier try has still not come to its end" in program.fail("offload", timeout_ms=100)
        program.do("check()")
        # AND one succeeds after the work has ended
        until.touch()

        def is_offloaded():
            operation = program.run("offload")
            assert operation["phase"] == "done" or "of an earlier try" in operation["error"], operation
            return operation["phase"] == "done"

        wait_until(is_offloaded)
        assert program.move["state"] == "offloaded"
    # AND if the work never ends, the program can still end
    with Console(memlab, env={"SIMGPU_HANG_SYNC": "1"}) as program:
        program.do("a = allocate(PAGE)")
        assert "did not come to its end in time" in program.fail("offload", timeout_ms=50)
        assert "of an earlier try" in program.fail("offload", timeout_ms=50)
        program.do("check()")
        program.end()


@pytest.mark.parametrize("nth", [1, 3, 4])
@pytest.mark.parametrize("function", ["cuMemMap", "cuMemSetAccess", "cuMemcpyHtoDAsync_v2", "cuMemCreate"])
def test_a_failed_restore_can_be_repeated(memlab, function, nth):
    # GIVEN a driver that fails during a restore; the program has already called it `before` times
    before = {"cuMemMap": 5, "cuMemSetAccess": 5, "cuMemCreate": 4}.get(function, 0)
    with Console(memlab, env={"SIMGPU_FAIL": f"{function}:999@{before + nth}"}) as program:
        size = movable(program)
        free = program.do("free_bytes()")
        program.succeed("offload")
        operation = program.run("restore")
        # THEN everything stays in host memory, and the program waits
        assert operation["phase"] == "failed"
        assert program.move["state"] == "offloaded"
        assert (program.move["device_bytes"], program.move["host_bytes"]) == (0, size)
        assert "offloaded already" in program.refuse("offload")
        # AND the next restore succeeds
        program.succeed("restore")
        is_right(program)
        program.cycle()
        is_right(program)
        assert resident(program) == size
        assert program.do("free_bytes()") == free
        program.end()


@pytest.mark.parametrize("seed", range(6))
def test_no_byte_is_lost_in_random_failures(memlab, seed):
    # GIVEN a driver whose functions fail occasionally, once memory of all kinds is allocated
    dice = random.Random(seed)
    functions = ["cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemAddressReserve", "cuMemHostRegister"]
    functions += [f"cuMemcpy{way}Async_v2" for way in ("DtoH", "HtoD", "DtoD")]
    functions += ["cuStreamCreate", "cuStreamSynchronize", "cuEventCreate", "cuEventRecord", "cuCtxSynchronize"]
    functions += ["cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemCreate"] * 3
    # Memory that cannot be unmapped even in the cleanup stays charged: then only the bytes are checked.
    forgives = seed % 2 == 0
    failing = []
    for function in functions if not forgives else [name for name in functions if name != "cuMemUnmap"]:
        nth = dice.randrange(1, 60)
        again = 1 + dice.randrange(2)  # the same number twice: two calls in a row
        failing += [f"{function}:{dice.choice([OUT_OF_MEMORY, INVALID_VALUE, 999])}@{nth + 8}"] * again
    with Console(memlab, env={"SIMGPU_FAIL": ",".join(failing)}) as program:
        size = movable(program)
        free = program.do("free_bytes()")
        blocks = program.do("[[memory.address, memory.size] for memory in everything]")
        succeeded = 0

        def step(command, **more):
            nonlocal succeeded
            reply = program.ask(command, **UNHURRIED, **more)
            if reply["ok"]:
                operation = program.outcome(reply["operation"])
                assert "memlab made a mistake" not in str(operation["error"])
                succeeded += operation["phase"] == "done"
            if program.move["state"] != "offloaded":
                is_right(program)
                program.do("random.choice(everything).write()")

        # WHEN operations run in random order
        for _ in range(25):
            if program.move["state"] == "offloaded" or dice.random() < 0.3:
                step("restore")
            elif dice.random() < 0.5:
                step("offload")
            else:
                address, length = dice.choice(blocks)
                first = dice.randrange(length // PAGE)
                step("offload", ranges=[[address + first * PAGE, dice.randrange(1, 4) * PAGE]])
        # THEN everything can be restored at the end, and nothing remains in host memory
        for _ in range(60):
            if program.move["state"] == "resident" and program.move["arena_bytes"] == 0:
                break
            step("restore", free_host=True)
        assert succeeded > 4
        is_right(program)
        assert resident(program) == size
        assert program.do("free_bytes()") == free or not forgives
        program.end()


def test_a_full_card(memlab):
    # GIVEN two processes on a card of 256 MiB
    with Console(memlab, memory="256MiB") as program:
        size = movable(program)
        large = program.do("big = allocate(100 * MIB)", "other = Other(MEMLAB='0')", "free_bytes()")
        program.succeed("offload")
        # WHEN the other allocates the free memory while the first is offloaded
        assert program.do("other.do('use(0)')", "other.do('free_bytes()')") > large
        program.do("other.do('hog = asked(\"cuMemAlloc_v2\", free_bytes() - 64 * MIB)')")
        for _ in range(2):
            operation = program.run("restore")
            # THEN everything stays in host memory, and can be restored later
            assert operation["phase"] == "failed" and operation["retryable"]
            assert "no room for 116 MiB" in operation["error"]
            move = program.move
            assert (move["state"], move["host_bytes"], move["device_bytes"]) == ("offloaded", size + 100 * MIB, 0)
        assert program.do("other.do('free_bytes()')") == 64 * MIB
        program.do("other.do(\"call('cuMemFree_v2', hog)\")")
        program.succeed("restore")
        is_right(program)
        assert program.do("other.end()") == 0
        program.end()


@pytest.mark.parametrize("function", ["cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"])
def test_an_allocation_that_fails_harms_no_other(memlab, function):
    # GIVEN a driver on which every seventh call of a function fails, as on a full card
    failing = ",".join(f"{function}:2@{nth}" for nth in range(3, 700, 7))
    with Console(memlab, env={"SIMGPU_FAIL": failing}) as program:
        free = program.do("free_bytes()")
        # WHEN threads allocate, and free what other threads have allocated
        program.do(*(f"later({seed}, lambda: churn({seed}, 200))" for seed in range(4)))
        program.do(*(f"ended({seed})" for seed in range(4)))
        # THEN some calls have failed, and all allocated memory holds its bytes
        failed = program.do("sum(outcome[0][0] for _, outcome in threads.values())")
        assert failed >= 10
        program.do("check()")
        # AND nothing remains after all is freed
        program.do("[memory.free() for memory in list(everything)]")
        assert program.do("free_bytes()") == free
        program.end()


@pytest.mark.parametrize("function", ["cuMemUnmap", "cuCtxSynchronize"])
def test_memory_that_cannot_be_freed_stays(memlab, function):
    # GIVEN a driver on which every fifth freeing call fails
    failing = ",".join(f"{function}:999@{nth}" for nth in range(2, 500, 5))
    with Console(memlab, env={"SIMGPU_FAIL": failing}) as program:
        program.do("kept = [allocate(3 * PAGE) for _ in range(20)]")
        # WHEN the program frees, THEN failed calls leave the memory unchanged
        assert 3 <= program.do("sum(not is_freed(memory) for memory in kept)") < 20
        program.do("check()")
        # AND it can be freed later
        for _ in range(2):
            program.do("[is_freed(memory) for memory in list(everything)]")
        assert program.do("len(everything)") == 0
        program.end()
