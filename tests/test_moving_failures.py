"""Whatever fails while memory moves, no byte and no call of the program fails."""

import random
import time

import pytest
from moving import MIB, PAGE, Console, is_right, movable, resident

OUT_OF_MEMORY, INVALID_VALUE = 2, 1


def test_too_little_host_memory(memlab):
    # GIVEN a user who allows less host memory than the program has device memory
    with Console(memlab, env={"MEMLAB_HOST_MAX": "11MiB"}) as program:
        size = movable(program)
        start = program.do("at")
        # THEN nothing is moved, and the program goes on
        assert "MEMLAB_HOST_MAX allows 11.0 MiB" in program.fail("offload")
        is_right(program)
        assert program.move["arena_bytes"] == 0
        # AND parts go as long as there is room for all that went
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
        # THEN the program goes on with the memory it had
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


@pytest.mark.parametrize("nth", [1, 2, 4, 5])
def test_what_the_driver_does_not_unmap_stays(memlab, nth):
    # GIVEN a driver that does not unmap one of the program's mappings
    with Console(memlab, env={"SIMGPU_FAIL": f"cuMemUnmap:1@{nth}"}) as program:
        movable(program)
        # THEN the rest leaves, and it is said what did not
        assert "did not let go of" in program.succeed("offload")["note"]
        assert 0 < program.move["device_bytes"] <= program.move["host_bytes"]
        program.succeed("restore")
        # AND every mapping is there again
        is_right(program)
        program.cycle()
        is_right(program)
        program.end()


def test_work_that_does_not_end(memlab):
    # GIVEN a device whose work takes a second
    with Console(memlab, env={"SIMGPU_HANG_SYNC": "1s"}) as program:
        program.do("a = allocate(PAGE)")
        # THEN an offload in less time is rolled back in time, and the program has gone on
        begun = time.monotonic()
        assert "did not come to its end in time" in program.fail("offload", timeout_ms=100)
        program.do("check()", "a.write()", "check()")
        assert "of an earlier try has still not come to its end" in program.fail("offload", timeout_ms=100)
        program.do("check()")
        assert time.monotonic() - begun < 0.9
        # AND once it has ended, one in more time succeeds
        time.sleep(1)
        program.succeed("offload", timeout_ms=5000)
        assert program.move["state"] == "offloaded"
    # AND where it never ends, the program does
    with Console(memlab, env={"SIMGPU_HANG_SYNC": "1"}) as program:
        program.do("a = allocate(PAGE)")
        assert "did not come to its end in time" in program.fail("offload", timeout_ms=50)
        time.sleep(0.1)
        assert "of an earlier try" in program.fail("offload", timeout_ms=50)
        program.do("check()")
        program.end()


@pytest.mark.parametrize("nth", [1, 3, 4])
@pytest.mark.parametrize("function", ["cuMemMap", "cuMemSetAccess", "cuMemcpyHtoDAsync_v2", "cuMemCreate"])
def test_a_restore_that_fails_can_be_tried_again(memlab, function, nth):
    # GIVEN a driver that fails somewhere in a restore; this program has called it that often before
    before = {"cuMemMap": 5, "cuMemSetAccess": 5, "cuMemCreate": 4}.get(function, 0)
    with Console(memlab, env={"SIMGPU_FAIL": f"{function}:999@{before + nth}"}) as program:
        size = movable(program)
        free = program.do("free_bytes()")
        program.succeed("offload")
        operation = program.run("restore")
        # THEN everything stays where it was, and the program waits
        assert operation["phase"] == "failed"
        assert program.move["state"] == "offloaded"
        assert (program.move["device_bytes"], program.move["host_bytes"]) == (0, size)
        assert "offloaded already" in program.refuse("offload")
        # AND the next time all comes back
        program.succeed("restore")
        is_right(program)
        program.cycle()
        is_right(program)
        assert resident(program) == size
        assert program.do("free_bytes()") == free
        program.end()


@pytest.mark.parametrize("seed", range(6))
def test_no_byte_is_lost_whatever_fails(memlab, seed):
    # GIVEN a driver whose functions fail now and then, once memory of all kinds is there
    dice = random.Random(seed)
    functions = ["cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemAddressReserve", "cuMemHostRegister"]
    functions += [f"cuMemcpy{way}Async_v2" for way in ("DtoH", "HtoD", "DtoD")]
    functions += ["cuStreamCreate", "cuStreamSynchronize", "cuEventCreate", "cuEventRecord", "cuCtxSynchronize"]
    functions += ["cuMemMap", "cuMemUnmap", "cuMemSetAccess", "cuMemCreate"] * 3
    # What the driver will not unmap even when memlab cleans up stays taken: then only the bytes are counted.
    forgives = seed % 2 == 0
    failing = []
    for function in functions if not forgives else [name for name in functions if name != "cuMemUnmap"]:
        nth = dice.randrange(1, 60)
        again = 1 + dice.randrange(2)  # The same number twice: two calls in a row.
        failing += [f"{function}:{dice.choice([OUT_OF_MEMORY, INVALID_VALUE, 999])}@{nth + 8}"] * again
    with Console(memlab, env={"SIMGPU_FAIL": ",".join(failing)}) as program:
        size = movable(program)
        free = program.do("free_bytes()")
        blocks = program.do("[[memory.address, memory.size] for memory in everything]")
        succeeded = 0

        def step(command, **more):
            nonlocal succeeded
            reply = program.ask(command, **more)
            if reply["ok"]:
                operation = program.outcome(reply["operation"])
                assert "memlab made a mistake" not in str(operation["error"])
                succeeded += operation["phase"] == "done"
            if program.move["state"] != "offloaded":
                is_right(program)
                program.do("random.choice(everything).write()")

        # WHEN everything is tried in any order
        for _ in range(25):
            if program.move["state"] == "offloaded" or dice.random() < 0.3:
                step("restore")
            elif dice.random() < 0.5:
                step("offload")
            else:
                address, length = dice.choice(blocks)
                first = dice.randrange(length // PAGE)
                step("offload", ranges=[[address + first * PAGE, dice.randrange(1, 4) * PAGE]])
        # THEN all comes back in the end, and nothing is left over
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
        # WHEN the other takes the room while the first is away
        assert program.do("other.do('use(0)')", "other.do('free_bytes()')") > large
        program.do("other.do('hog = asked(\"cuMemAlloc_v2\", free_bytes() - 64 * MIB)')")
        for _ in range(2):
            operation = program.run("restore")
            # THEN everything stays in host memory, and can come back later
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
