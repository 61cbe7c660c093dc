"""A running program's GPU memory leaves and comes back, and whatever goes wrong with it, no byte and no call of the program
does."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time

import pytest
from conftest import PROGRAMS
from moving import Console, Program

MIB = 1 << 20
PAGE = 2 * MIB
OUT_OF_MEMORY, INVALID_VALUE = 2, 1

# Memory of every kind that can be moved: of one page and of several, of a size that fills no page, mapped by the program
# itself, once and twice.
OF_ALL_KINDS = (
    "small, large = allocate(PAGE), allocate(3 * PAGE + 12345)",
    "handle, at = create(2 * PAGE), reserve(8 * PAGE)",
    "own = holds(attach(at, 2 * PAGE, handle), 2 * PAGE)",
    "twin = create(PAGE)",
    "both = holds(attach(at + 4 * PAGE, PAGE, twin), PAGE)",
    "again = attach(at + 6 * PAGE, PAGE, twin)",
)


def movable(program):
    """Gives it memory of all kinds, and says how much that is."""
    program.do(*OF_ALL_KINDS)
    return (1 + 4 + 2 + 1) * PAGE


def is_right(program):
    program.do("check()", "both.check(again)")


@pytest.fixture
def threads(memlab):
    path = memlab.folder / "threads"
    subprocess.run(["cc", "-O1", "-o", path, PROGRAMS / "threads.c", "-ldl", "-lpthread"], check=True)
    return path


def test_no_byte_is_wrong_while_eight_threads_work(memlab, threads):
    # GIVEN a program whose threads allocate, copy, launch and free all the time, and check all they own
    moments = random.Random(1)
    with Program(memlab, threads) as program:
        while program.move["device_bytes"] < 16 * PAGE:
            time.sleep(0.001)
        # WHEN its memory leaves and comes back a hundred times, at random moments
        for number in range(100):
            time.sleep(moments.uniform(0, 0.005))
            program.succeed("offload")
            away = program.move
            assert (away["state"], away["device_bytes"]) == ("offloaded", 0)
            time.sleep(moments.uniform(0, 0.002))
            program.succeed("restore", free_host=number % 20 == 19)
        # THEN it has seen no wrong byte, and ends by itself
        checks = int(program.end().split()[0])
        assert checks > 500
        assert program.errors == ""


# Captures


def test_a_capture_is_waited_for(memlab):
    with Console(memlab) as program:
        program.do("a = allocate(PAGE)", "stream = asked('cuStreamCreate', 1)", "begin_capture(stream)")
        # WHEN the program is to be offloaded while it captures a graph
        number = program.start("offload", timeout_ms=30000)
        while program.move["operation"]["phase"] != "waiting":
            time.sleep(0.001)
        # THEN the capture goes on, and it ends
        program.do("call('cuMemsetD8Async', a.address, 7, PAGE, stream)")
        assert "another operation (offload) is under way" in program.refuse("restore")
        time.sleep(0.05)
        assert program.move["state"] == "offloading"
        program.tell("graph = end_capture(stream)")
        # AND only then the memory leaves
        assert program.outcome(number)["phase"] == "done"
        program.succeed("restore")
        program.told()
        # AND the graph can be replayed, with the addresses it was made with, while memory leaves and comes back
        for _ in range(3):
            program.do("call('cuGraphLaunch', graph, stream)", "check()")
            program.cycle()
        program.end()


@pytest.mark.parametrize("host_memory", ["1GiB", "8MiB"])
def test_memory_that_grew_while_a_capture_was_waited_for(memlab, host_memory):
    with Console(memlab, env={"MEMLAB_HOST_MAX": host_memory}) as program:
        # GIVEN two pages, of which one is to go, and a stretch behind them of which one more is
        program.do(
            "at = reserve(10 * PAGE)",
            "holds(attach(at, 2 * PAGE, create(2 * PAGE)), 2 * PAGE)",
            "more = create(8 * PAGE)",
            "stream = asked('cuStreamCreate', 1)",
            "begin_capture(stream)",
        )
        address = program.do("at")
        number = program.start("offload", timeout_ms=30000, ranges=[[address, PAGE], [address + 2 * PAGE, PAGE]])
        while program.move["operation"]["phase"] != "waiting":
            time.sleep(0.001)
        # WHEN the program puts other memory there before a moment comes in which nothing runs
        program.do("everything.append(Memory(attach(at + 2 * PAGE, 8 * PAGE, more), 8 * PAGE))")
        program.tell("graph = end_capture(stream)")
        operation = program.outcome(number)
        program.told()
        # THEN the host memory that this takes is there as well
        if host_memory == "1GiB":
            assert operation["phase"] == "done", operation
            assert program.move["host_bytes"] == 2 * PAGE
            program.succeed("restore")
        else:  # OR it is said how much is missing, and nothing has happened
            assert "MEMLAB_HOST_MAX allows 8.00 MiB" in operation["error"], operation
            assert program.move["host_bytes"] == 0
        program.do("check()")
        program.end()


def test_a_free_beside_a_capture(memlab):
    with Console(memlab) as program:
        program.do("a = allocate(4 * PAGE)", "b = allocate(PAGE)", "stream = asked('cuStreamCreate', 1)")
        free = program.do("free_bytes()")
        # GIVEN a capture
        program.do("begin_capture(stream)")
        # WHEN memory is freed meanwhile, THEN that neither fails nor spoils the capture, and waits for its end
        program.do("a.free()")
        assert program.do("free_bytes()") == free
        program.do("graph = end_capture(stream)", "call('cuGraphLaunch', graph, stream)")
        assert program.do("free_bytes()") == free + 4 * PAGE
        # AND what is left moves as before
        program.cycle()
        program.do("check()")


def test_a_capture_without_end_is_left_alone(memlab):
    with Console(memlab) as program:
        program.do("a = allocate(PAGE)", "stream = asked('cuStreamCreate', 1)", "begin_capture(stream)")
        for what in ("offload", "move"):
            ranges = {"ranges": [[program.do("a.address"), PAGE]]} if what == "move" else {}
            # WHEN it does not end in time, THEN nothing is moved and the program goes on
            assert "capturing a CUDA graph" in program.fail("offload", timeout_ms=100, **ranges)
            program.do("call('cuMemsetD8Async', a.address, 7, PAGE, stream)")
        # AND calls that look like its end or another beginning change nothing
        program.do(
            "later('stranger', lambda: end_capture(stream))",
            "with suppress(Failed): begin_capture(stream); print('begun')",
            "with suppress(Failed): ended('stranger'); print('ended')",
        )
        assert "capturing a CUDA graph" in program.fail("offload", timeout_ms=100)
        # AND the capture is as good as it was
        program.do("graph = end_capture(stream)", "call('cuGraphLaunch', graph, stream)")
        program.cycle()
        program.do("check()")
        program.end()


# Failures


def resident(program):
    """That all memory is on the device again, none is lost, and none left over in host memory."""
    move = program.move
    assert (move["state"], move["host_bytes"]) == ("resident", 0)
    if move["arena_bytes"]:
        program.succeed("restore", free_host=True)
    assert program.move["arena_bytes"] == 0
    return move["device_bytes"]


def test_too_little_host_memory(memlab):
    # GIVEN a user who allows less host memory than the program has device memory
    with Console(memlab, env={"MEMLAB_HOST_MAX": "11MiB"}) as program:
        size = movable(program)
        start = program.do("at")
        # THEN nothing is moved, and the program goes on
        assert "MEMLAB_HOST_MAX allows 11.00 MiB" in program.fail("offload")
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


def test_a_host_callback_that_waits(memlab):
    with Console(memlab) as program:
        # GIVEN a callback in a stream that waits for another thread of the program
        program.do(
            "a, go, stream = allocate(4 * PAGE), threading.Event(), asked('cuStreamCreate', 1)",
            "callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: go.wait() and None)",
            "later('callback', lambda: call('cuLaunchHostFunc', stream, callback, 0))",
        )
        # WHEN memory is to leave meanwhile, THEN that comes to an end, whether it can or not, and the program goes on
        for _ in range(3):
            if program.run("offload", timeout_ms=1000)["phase"] == "done":
                program.succeed("restore")
            program.do("check()")
        program.do("go.set()")
        assert program.do("ended('callback')")
        program.cycle()
        program.do("check()")


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
            assert "no room for 116.00 MiB" in operation["error"]
            move = program.move
            assert (move["state"], move["host_bytes"], move["device_bytes"]) == ("offloaded", size + 100 * MIB, 0)
        assert program.do("other.do('free_bytes()')") == 64 * MIB
        program.do("other.do(\"call('cuMemFree_v2', hog)\")")
        program.succeed("restore")
        is_right(program)
        assert program.do("other.end()") == 0
        program.end()


# While it is away


def test_frees_come_to_their_end_and_allocations_wait(memlab):
    with Console(memlab) as program:
        size = movable(program)
        free = program.do("free_bytes()", "gone = allocate(4 * PAGE)", "free_bytes()") + 4 * PAGE
        program.succeed("offload")
        # WHEN the program frees while its memory is away, THEN it does not wait
        program.do("gone.free()", "call('cuMemUnmap', again, PAGE)", "call('cuMemRelease', handle)")
        assert program.move["host_bytes"] == size
        # AND what allocates or touches memory waits
        program.do(
            "later('allocating', lambda: asked('cuMemAlloc_v2', 2 * PAGE))",
            "later('small', lambda: asked('cuMemAlloc_v2', 100))",
            "later('creating', lambda: create(PAGE))",
            "later('reading', lambda: large.check())",
            "later('pinning', lambda: asked('cuMemAllocHost_v2', 100))",
        )
        for name in ("allocating", "small", "creating", "reading", "pinning"):
            assert not program.do(f"ended({name!r}, 0.02)")
        program.succeed("restore")
        for name in ("allocating", "small", "creating", "reading", "pinning"):
            assert program.do(f"ended({name!r})")
        # AND everything else is as it was
        program.do("check()", "attach(again, PAGE, twin)", "both.check(again)")
        assert program.do("free_bytes()") == free - 3 * PAGE - 512
        program.end()


def test_all_of_it_freed_while_away(memlab):
    with Console(memlab) as program:
        free = program.do("free_bytes()", "a, b = allocate(PAGE), allocate(5 * PAGE)", "free_bytes()") + 6 * PAGE
        program.succeed("offload")
        program.do("a.free()", "b.free()")
        assert (program.move["state"], program.move["host_bytes"]) == ("offloaded", 0)
        # THEN there is nothing to bring back, but a program to wake up
        program.succeed("restore", free_host=True)
        assert program.move["arena_bytes"] == 0
        program.do("c = allocate(PAGE)")
        program.cycle()
        program.do("check()", "c.free()")
        assert program.do("free_bytes()") == free
        program.end()


@pytest.mark.parametrize("ending", ["SIGTERM", "SIGKILL", "_exit", "exit"])
def test_a_program_may_end_while_it_is_away(memlab, ending):
    # GIVEN a process whose memory is away, and another on the same card, which starts it
    with Console(memlab, offload=False, env={"MEMLAB": "0"}) as parent:
        environment = {"MEMLAB": "1", "MEMLAB_OFFLOAD": "1"}
        pid = parent.do(f"child = Other(**{environment})", "child.do('use(0)')", "child.process.pid")
        free = parent.do("free_bytes()")
        # AND something of its that runs late at its exit uses the card
        parent.do(
            "child.do('libc, fill = ctypes.CDLL(None), lambda *_: cu.cuMemsetD8_v2(ctypes.c_uint64(a.address), 1, 1)')",
            "child.do('late = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)(fill)')",
            "child.do('libc.on_exit(late, None)')",
            "child.do('a = allocate(8 * PAGE)')",
            "import signal",
        )
        parent.socket = parent.socket.with_name(f"{pid}.sock")
        parent.succeed("offload")
        parent.do("child.do(\"later('waiting', lambda: a.check())\")")
        # WHEN it ends while a thread of its waits
        if ending == "_exit":
            parent.do("print('os._exit(5)', file=child.process.stdin, flush=True)")
        elif ending == "exit":
            parent.do("print('libc.exit(5)', file=child.process.stdin, flush=True)")
        else:
            parent.do(f"child.process.send_signal(signal.{ending})")
        # THEN it is gone at once, with its socket, and so is what it held of the card
        code = parent.do("child.process.wait(10)")
        assert code == (5 if "exit" in ending else -getattr(signal, ending))
        seen = subprocess.run(
            [memlab.command, "ps"],
            capture_output=True,
            text=True,
            env=memlab.environment(XDG_RUNTIME_DIR=parent.runtime),
        )
        assert (seen.returncode, str(pid) in seen.stdout) == (0, False)
        assert not parent.socket.exists()
        assert parent.do("free_bytes()") == free + 16 * MIB
        parent.end()


# Parts of it


def test_random_pages_move_while_the_program_runs(memlab):
    dice = random.Random(3)
    with Console(memlab) as program:
        # GIVEN a program whose threads change and check their memory all the time
        program.do("stop, bad = threading.Event(), []")
        for number in range(3):
            program.do(f"later({number}, lambda: worker(stop, bad))")
        size = movable(program)
        blocks = program.do("[[memory.address, memory.size] for memory in everything]")
        whole = {address: program.do(f"attributes({address}, 2, 9, 11, 12)") for address, _ in blocks}
        for number in range(12):
            # WHEN random pages of its memory go to host memory, in several steps
            for _ in range(dice.randrange(1, 4)):
                ranges = []
                for address, length in dice.sample(blocks, 2):
                    first = dice.randrange(-(-length // PAGE))
                    ranges.append([address + first * PAGE, dice.randrange(1, 3) * PAGE])
                operation = program.run("offload", ranges=ranges)
                assert operation["phase"] == "done" or "none of this memory can be moved" in operation["error"]
                assert operation["done_bytes"] <= operation["total_bytes"]
                # THEN it runs on, with every byte where it was
                assert program.move["state"] == "partly_offloaded"
                is_right(program)
            # AND what it is told of an address is what it was told before
            for address, length in blocks:
                inside = address + dice.randrange(length)
                assert program.do(f"range_of({inside})") == [address, length]
                assert program.do(f"attributes({inside}, 2, 9, 11, 12)") == whole[address]
            # AND all of it can go from there, and come back
            if number % 3 == 2:
                program.do("[memory.write() for memory in everything]")
                program.succeed("offload")
                assert program.move["device_bytes"] == 0
            program.succeed("restore", free_host=number % 4 == 3)
            assert program.move["host_bytes"] == 0
            is_right(program)
        program.do("stop.set()")
        assert all(program.do(f"ended({number})") for number in range(3))
        assert program.do("bad") == []
        assert resident(program) == size
        program.end()


def test_ranges_that_name_nothing(memlab):
    with Console(memlab) as program:
        address = program.do("a = allocate(4 * PAGE)", "a.address")
        huge = (1 << 64) - 1
        for ranges in ([[0, PAGE]], [[huge, huge]], [[address + 1, PAGE]], [[address, PAGE - 1]], [[address, 0]]):
            assert "none of this memory can be moved" in program.fail("offload", ranges=ranges)
        # WHEN one is larger than what there is, THEN all that is there goes
        operation = program.succeed("offload", ranges=[[0, huge], [1, huge], [address, huge]])
        assert "cannot be moved or were in host memory already" in operation["note"]
        assert program.move["host_bytes"] == 4 * PAGE
        # AND pages that are in host memory, and are freed there, are gone
        program.do("check()", "a.free()")
        assert program.move["host_bytes"] == 0
        assert program.move["state"] == "resident"
        program.end()


# Virtual memory of the program's own


def test_programs_that_map_memory_themselves(memlab):
    with Console(memlab) as program:
        movable(program)
        free = program.do("free_bytes()")
        for number in range(5):
            program.cycle()
            is_right(program)
            # THEN handles are what they were, also those asked for anew
            assert program.do("properties(handle)") == [1, 0, 1, 0]
            assert program.do("kept = asked('cuMemRetainAllocationHandle', at + 5)", "kept == handle")
            program.do("call('cuMemRelease', kept)")
            # AND memory can be taken from where it is and put elsewhere, also while it is partly away
            start = program.do("at")
            program.succeed("offload", ranges=[[start, PAGE]])
            program.do("call('cuMemUnmap', at, 2 * PAGE)", "attach(at + 2 * PAGE, 2 * PAGE, handle)")
            program.do("own.check(at + 2 * PAGE)", "call('cuMemUnmap', at + 2 * PAGE, 2 * PAGE)")
            if number % 2:
                program.succeed("restore")  # It is mapped nowhere now.
            program.do("attach(at, 2 * PAGE, handle)", "check()")
            if not number % 2:
                program.succeed("restore")
            assert program.do("free_bytes()") == free
        # AND who unmaps a part, or what was allocated otherwise, is told so as ever
        for wrong in ("at, PAGE", "at + PAGE, PAGE", "small.address, PAGE", "at, 3 * PAGE"):
            program.do(f"with suppress(Failed): call('cuMemUnmap', {wrong}); done = 1")
            program.do("check()", "'done' in globals() and 1 / 0")
        program.do("with suppress(Failed): asked('cuMemRetainAllocationHandle', small.address); 1 / 0")
        # AND all of it goes back to the card
        program.do("small.free()", "large.free()", "call('cuMemUnmap', at, 2 * PAGE)", "call('cuMemRelease', handle)")
        program.do("[call('cuMemUnmap', at + n * PAGE, PAGE) for n in (4, 6)]", "call('cuMemRelease', twin)")
        program.do("call('cuMemAddressFree', at, 8 * PAGE)")
        assert program.do("free_bytes()") == free + 8 * PAGE
        program.end()


def test_a_mapping_of_a_part(memlab):
    # GIVEN memory of which only the first page is mapped a second time
    with Console(memlab) as program:
        program.do("handle, at = create(2 * PAGE), reserve(4 * PAGE)", "own = holds(attach(at, 2 * PAGE, handle), 2 * PAGE)")
        program.do("attach(at + 2 * PAGE, PAGE, handle)", "a = allocate(PAGE)")
        # THEN it stays where it is, and the rest goes
        assert program.move["fixed_bytes"] == 2 * PAGE
        program.succeed("offload")
        assert program.move["device_bytes"] == 0
        program.succeed("restore")
        program.do("check()", "first = Memory(at + 2 * PAGE, PAGE)", "first.bytes[:] = own.bytes[:PAGE]", "first.check()")
        program.end()


def test_memory_shared_with_another_process_stays(memlab):
    with Console(memlab) as program:
        program.do(
            "a, shared = allocate(PAGE), create(PAGE, shareable=True)",
            "s = holds(attach(reserve(PAGE), PAGE, shared), PAGE)",
        )
        assert program.move["fixed_bytes"] == 0
        # WHEN an export fails, THEN the memory may leave as before
        program.do("with suppress(Failed): asked('cuMemExportToShareableHandle', shared, 99, 0)")
        assert program.move["fixed_bytes"] == 0
        # WHEN another process has it too
        program.do(
            "file = asked('cuMemExportToShareableHandle', shared, 1, 0, kind=ctypes.c_int)",
            "os.set_inheritable(file, True)",
            "pass_on.append(file)",
            "other = Other(MEMLAB_OUTPUT='other.jsonl')",
            "other.do('use(0)')",
            "other.do(f\"theirs = asked('cuMemImportFromShareableHandle', ctypes.c_void_p({file}), 1)\")",
            "other.do('memory = Memory(attach(reserve(PAGE), PAGE, theirs), PAGE)')",
        )
        for number in range(3):
            assert (program.move["fixed_bytes"], program.move["device_bytes"]) == (PAGE, PAGE)
            program.succeed("offload")
            # THEN it stays, also while the rest is away, and both see what either writes
            assert (program.move["fixed_bytes"], program.move["device_bytes"]) == (PAGE, 0)
            assert program.do(f"other.do('memory.fill({number + 65})')", "ctypes.string_at(s.address, 2).hex()")
            program.succeed("restore")
            program.do(f"s.bytes[:] = bytes([{number + 65}]) * PAGE", "check()")
        assert program.do("other.end()") == 0
        program.end()


def test_cuda_ipc_is_refused_in_words(memlab):
    for offload in (True, False):
        with Console(memlab, offload=offload) as program:
            program.do(
                "large, small = allocate(PAGE), allocate(MIB)",
                "share = lambda it: cu.cuIpcGetMemHandle(ctypes.create_string_buffer(64), ctypes.c_uint64(it.address))",
            )
            assert program.do("share(small)") == 0
            # THEN memory that may leave cannot be shared so, which one line says
            refused = [program.do("share(large)") != 0 for _ in range(3)]
            assert refused == [offload] * 3
            lines = program.errors.splitlines()
            assert len(lines) == offload
            assert all(line.startswith("memlab: memory that can be offloaded cannot be shared") for line in lines)
            program.end()


# More than one device, context, process


def test_two_devices(memlab):
    with Console(memlab, devices=2) as program:
        # GIVEN memory from before and after the devices may reach each other's
        program.do("use(1)", "c = allocate(3 * PAGE)", "use(0)", "a = allocate(3 * PAGE)")
        program.do(
            "call('cuCtxEnablePeerAccess', contexts[1], 0)", "use(1)", "call('cuCtxEnablePeerAccess', contexts[0], 0)"
        )
        program.do("d = allocate(PAGE)", "use(0)", "b = allocate(PAGE)")
        across = "call('cuMemcpyDtoD_v2', a.address, c.address, c.size)", "a.bytes[:] = c.bytes"
        free = program.do("free_bytes()"), program.do("use(1)", "free_bytes()")
        for number in range(4):
            program.cycle()
            program.do("check()", "c.write()", *across, "check()", "d.write()", f"use({number % 2})")
            ranges = [[program.do(f"{name}.address + PAGE * ({name}.size > PAGE)"), PAGE] for name in "acd"]
            program.succeed("offload", ranges=ranges)
            assert program.move["host_bytes"] == 3 * PAGE
            # THEN an address belongs to its device, wherever its bytes are
            for name, device in zip("abcd", (0, 0, 1, 1), strict=True):
                assert program.do(f"attributes({name}.address + {name}.size - 1, 2, 9)") == [2, device]
            program.do("check()", *across, "check()")
            program.succeed("restore")
        program.do("check()")
        assert (program.do("use(0)", "free_bytes()"), program.do("use(1)", "free_bytes()")) == free
        program.end()


def test_a_context_of_the_programs_own(memlab):
    # GIVEN a program that never uses the device's primary context
    with Console(memlab) as program:
        program.do(
            "own = asked('cuCtxCreate_v2', 0, 0)", "call('cuDevicePrimaryCtxRelease_v2', 0)", "a = allocate(3 * PAGE)"
        )
        program.cycle()
        program.do("check()")
        program.succeed("offload", ranges=[[program.do("a.address"), PAGE]])
        program.do("check()")
        program.succeed("restore")
        program.do("check()")
        # WHEN it ends, THEN its memory goes with it, and there is nothing to move
        program.do("call('cuCtxDestroy_v2', own)", "everything.clear()")
        assert (program.move["device_bytes"], program.move["host_bytes"]) == (0, 0)
        program.end()


def test_forks_and_subprocesses(memlab):
    with Console(memlab) as program:
        program.do("a = allocate(4 * PAGE)")
        program.succeed("offload")
        # WHEN a program forks while its memory is away, THEN the child runs, finds no card as ever, and can end
        program.do(
            "child = os.fork() or os._exit(cu.cuMemFree_v2(ctypes.c_uint64(a.address)) == 3 and "
            "cu.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), 1) == 3 and cu.cuMemcpyDtoH_v2(None, 0, 0) == 3)"
        )
        assert program.do("os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])") == 1
        assert program.do("subprocess.run(['echo', 'hello'], capture_output=True, text=True).stdout") == "hello\n"
        # AND takes nothing of its parent's
        program.succeed("restore")
        program.do("check()")
        program.cycle()
        program.do("check()")
        program.end()


# PyTorch


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "backend:cudaMallocAsync"])
def test_trainings(memlab, settings):
    # GIVEN a training with workers that load its data, and tensors that nobody changes
    env = {"PYTORCH_CUDA_ALLOC_CONF": settings} if settings else {}
    with Program(memlab, sys.executable, PROGRAMS / "loading.py", env=env) as program:
        assert program.process.stdout.readline() == "ready\n"
        for _ in range(5):
            if settings == "backend:cudaMallocAsync":
                # THEN what lies in the driver's pools is left there, and the rest goes
                reply = program.ask("offload")
                error = program.outcome(reply["operation"])["error"] if reply["ok"] else reply["error"]
                if error:
                    assert "holds no device memory that could be moved" in error
                    continue
            else:
                program.succeed("offload")
                assert program.move["host_bytes"] >= 64 * MIB
            time.sleep(0.01)
            program.succeed("restore")
        # THEN it has lost nothing, and ends by itself
        assert program.end().endswith("right\n")
        assert "memlab" not in program.errors


# The protocol


def test_other_users_are_refused(memlab):
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    with Console(memlab) as program:
        program.do("a = allocate(PAGE)")
        assert program.ask("status")["ok"]

        def as_another():
            read, write = os.pipe()
            if (child := os.fork()) == 0:
                try:
                    os.setuid(65534)
                    with socket.socket(socket.AF_UNIX) as client:
                        client.connect(str(program.socket))
                        os.write(write, client.recv(4096))
                except OSError as error:
                    os.write(write, repr(error).encode())
                finally:
                    os._exit(0)
            os.close(write)
            os.waitpid(child, 0)
            return os.read(read, 4096).decode()

        # THEN nobody else gets to the socket
        assert "PermissionError" in as_another()
        # AND where somebody opens the way, the process itself refuses
        program.runtime.chmod(0o755)
        program.socket.parent.chmod(0o755)
        program.socket.chmod(0o777)
        assert json.loads(as_another()) == {"ok": False, "error": "only the owner of the process may ask"}
        assert program.move["operation"] is None
        program.end()


def test_what_is_no_request_does_no_harm(memlab):
    dice = random.Random(8)
    right = [
        '{"command": "status"}',
        '{"command": "offload", "timeout_ms": 30000, "ranges": [[1, 2]]}',
        '{"command": "restore", "free_host": true}',
        '{"command": "checkpointed", "value": true}',
    ]
    wrong = [
        *(
            '""',
            "0",
            "null",
            "[]",
            "{}",
            '{"command": 1}',
            '{"command": null}',
            '{"command": ["status"]}',
            '{"command": ""}',
        ),
        *('{"command": "status"} x', '{"command": "status"', '{"command":', "\0", '{"command": "stat\0us"}'),
        *(f'{{"command": "offload", "timeout_ms": {value}}}' for value in ('"1"', "-1", "1.5", "1e400", "[]", "9" * 400)),
        *(f'{{"command": "offload", "ranges": {value}}}' for value in ("0", "[]", "[[1]]", "[[1, 2, 3]]", '[["1", 2]]')),
        *(f'{{"command": "offload", "ranges": [[{value}, 2]]}}' for value in ("-1", "1.5", "9" * 40, "null", "{}")),
        *(f'{{"command": "restore", "free_host": {value}}}' for value in ('"yes"', "1", "[]")),
        *(f'{{"command": "checkpointed"{value}}}' for value in ("", ', "value": null', ', "value": 1', ', "value": "true"')),
        '{"command": "limit"' + ', "bytes": -1}',
        "[" * 100000,
        '{"a":' * 100000,
        '{"command": "' + "x" * (1 << 20) + '"}',
        " " * (3 << 20),
        '{"command": "offload", "ranges": [' + "[1, 2]," * 200000,
        '{"command": "' + "é\\u0000\U0001f600" * 1000 + '"}',
    ]
    # GIVEN a program that works all the time
    with Console(memlab) as program:
        program.do("stop, bad = threading.Event(), []", "later(0, lambda: worker(stop, bad))", "a = allocate(PAGE)")

        def refused(data):
            if (reply := program.exchange(data)) and not data.startswith(b"\n"):
                answer = json.loads(reply)
                assert answer["ok"] is False and 0 < len(answer["error"]) < 1000, (data[:100], reply[:1000])

        # WHEN it is asked what is no request
        for text in wrong:
            refused(text.encode(errors="replace") + b"\n")
        for number in range(2000):
            text = bytearray(dice.choice(right).encode())
            if number % 2:
                refused(dice.randbytes(dice.randrange(200)) + b"\xff\n")
            else:
                # Cut off, which no request survives.
                refused(bytes(text[: dice.randrange(1, len(text))]))
        # THEN nothing was done, and whoever asks properly is answered
        move = program.move
        assert (move["state"], move["operation"]) == ("resident", None)
        assert len(json.loads(program.exchange(b'{"command":"nonsense"}\nmore\n'))["error"]) < 100
        program.cycle()
        program.do("check()", "stop.set()")
        assert program.do("ended(0)") and program.do("bad") == []
        program.end()


def test_nothing_to_do(memlab):
    with Console(memlab) as program:
        program.do("small = allocate(MIB)")
        # THEN what would do nothing is refused at once
        assert "no device memory that could be moved" in program.refuse("offload")
        assert "nothing is offloaded" in program.refuse("restore")
        program.do("a = allocate(PAGE)")
        assert "nothing is offloaded" in program.refuse("restore")
        program.cycle()
        program.do("check()")
        program.end()


def test_without_offload_the_memory_is_the_drivers(memlab):
    # GIVEN a driver that refuses all that moving memory needs
    failing = ("cuMemCreate", "cuMemMap", "cuMemAddressReserve", "cuMemSetAccess", "cuMemHostRegister")
    env = {"SIMGPU_FAIL": ",".join(f"{name}:2" for name in failing)}
    with Console(memlab, offload=False, env=env) as program:
        program.do("a = allocate(3 * PAGE)", "check()")
        # THEN a program that was not started for it does not notice, and says why it cannot be offloaded
        for ranges in ({}, {"ranges": [[program.do("a.address"), PAGE]]}):
            assert "was not started for offloading" in program.refuse("offload", **ranges)
        assert "was not started for offloading" in program.refuse("restore")
        move = program.move
        assert (move["enabled"], move["state"]) == (False, "resident") and "not started" in move["why_not"]
        program.do("check()", "a.free()")
        program.end()
    # AND one that was does
    with Console(memlab, env=env) as program:
        assert program.do("cu.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_uint64(PAGE))") == OUT_OF_MEMORY
