"""Offloading and restoring a running program's GPU memory while it works, waits, frees or ends."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from control import UNHURRIED
from moving import MIB, PAGE, Console, Program, is_right, movable, resident
from waiting import wait_until

PROGRAMS = Path(__file__).parent / "programs"

OUT_OF_MEMORY = 2


@pytest.fixture
def threads(memlab):
    path = memlab.folder / "threads"
    subprocess.run(["cc", "-O1", "-o", path, PROGRAMS / "threads.c", "-ldl", "-lpthread"], check=True)
    return path


def test_no_byte_is_wrong_while_eight_threads_work(memlab, threads):
    # GIVEN a program whose threads constantly allocate, copy, launch and free, and check all their memory
    moments, counter = random.Random(1), memlab.folder / "checks"
    counter.touch()

    def checks():
        return int.from_bytes(counter.read_bytes(), "little")

    with Program(memlab, threads, counter) as program:
        wait_until(lambda: program.move["device_bytes"] >= 16 * PAGE)
        # WHEN its memory is offloaded and restored a hundred times, at random moments after some checks
        for number in range(100):
            before = checks()
            wait_until(lambda before=before: checks() >= before + 5)
            time.sleep(moments.uniform(0, 0.005))
            program.succeed("offload")
            away = program.move
            assert (away["state"], away["device_bytes"]) == ("offloaded", 0)
            time.sleep(moments.uniform(0, 0.002))
            program.succeed("restore", free_host=number % 20 == 19)
        # THEN no byte is wrong, and the program ends normally
        assert int(program.end().split()[0]) == checks() >= 500
        assert program.errors == ""


def test_random_pages_move_while_the_program_runs(memlab):
    dice = random.Random(3)
    with Console(memlab) as program:
        # GIVEN a program whose threads constantly change and check their memory
        program.do("stop, bad = threading.Event(), []")
        for number in range(3):
            program.do(f"later({number}, lambda: worker(stop, bad))")
        size = movable(program)
        blocks = program.do("[[memory.address, memory.size] for memory in everything]")
        whole = {address: program.do(f"attributes({address}, 2, 9, 11, 12)") for address, _ in blocks}
        for number in range(12):
            # WHEN random pages of its memory are moved to host memory, in several steps
            for _ in range(dice.randrange(1, 4)):
                ranges = []
                for address, length in dice.sample(blocks, 2):
                    first = dice.randrange(-(-length // PAGE))
                    ranges.append([address + first * PAGE, dice.randrange(1, 3) * PAGE])
                operation = program.run("offload", ranges=ranges)
                assert operation["phase"] == "done" or "none of this memory can be moved" in operation["error"]
                assert operation["done_bytes"] <= operation["total_bytes"]
                # THEN it continues, with every byte unchanged
                assert program.move["state"] == "partly_offloaded"
                is_right(program)
            # AND queries about an address return the same as before
            for address, length in blocks:
                inside = address + dice.randrange(length)
                assert program.do(f"range_of({inside})") == [address, length]
                assert program.do(f"attributes({inside}, 2, 9, 11, 12)") == whole[address]
            # AND everything can be offloaded from that state, and restored
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


def test_pages_that_stay_cross_the_bus_only_where_the_card_is_full(memlab):
    # GIVEN a program with an allocation of 40 MiB on a card with room for more
    with Console(memlab, memory="256MiB") as program:
        address = program.do("piece = allocate(40 * MIB)", "piece.address")
        # WHEN some of its pages go to host memory
        operation = program.succeed("offload", ranges=[[address + 4 * PAGE, 2 * PAGE]])
        # THEN no other page went there
        assert operation["total_bytes"] == operation["done_bytes"] == 2 * PAGE
        assert program.move["arena_bytes"] == 0
        assert (program.move["host_bytes"], program.move["device_bytes"]) == (2 * PAGE, 40 * MIB - 2 * PAGE)
        program.do("check()", "piece.write()")
        # AND WHEN the card is full
        program.do("rest = [allocate(2 * MIB) for _ in range(free_bytes() // (2 * MIB))]")
        program.succeed("offload", ranges=[[address + 8 * PAGE, PAGE]])
        # THEN the 13 other pages of the remaining piece of 14 passed through host memory
        assert program.move["arena_bytes"] >= 13 * PAGE
        assert program.move["host_bytes"] == 3 * PAGE
        program.do("check()")
        program.do("[one.free() for one in rest]")
        program.succeed("restore")
        program.do("check()")
        program.end()


def test_pages_that_stay_are_not_there_twice_where_a_limit_forbids_it(memlab):
    # GIVEN a program with an allocation of 40 MiB and room for 20 MiB below its limit, on a card with more room
    with Console(memlab, env={"MEMLAB_LIMIT": "128MiB"}) as program:
        address = program.do("piece = allocate(40 * MIB)", "piece.address")
        program.do("rest = allocate(free_bytes() // MIB * MIB - 20 * MIB)")
        # WHEN some of its pages go to host memory
        program.succeed("offload", ranges=[[address, 2 * PAGE]])
        # THEN the other 36 MiB passed through host memory
        assert program.move["arena_bytes"] >= 36 * MIB
        assert program.move["host_bytes"] == 2 * PAGE
        program.do("check()")
        program.end()


def test_ranges_without_memory(memlab):
    with Console(memlab) as program:
        address = program.do("a = allocate(4 * PAGE)", "a.address")
        huge = (1 << 64) - 1
        for ranges in ([[0, PAGE]], [[huge, huge]], [[address + 1, PAGE]], [[address, PAGE - 1]], [[address, 0]]):
            assert "none of this memory can be moved" in program.fail("offload", ranges=ranges)
        # WHEN a range is larger than the existing memory, THEN all memory in it is moved
        operation = program.succeed("offload", ranges=[[0, huge], [1, huge], [address, huge]])
        assert "cannot be moved or were in host memory already" in operation["note"]
        assert program.move["host_bytes"] == 4 * PAGE
        # AND pages that are freed in host memory are gone
        program.do("check()", "a.free()")
        assert program.move["host_bytes"] == 0
        assert program.move["state"] == "resident"
        program.end()


def test_operations_without_effect_are_refused(memlab):
    with Console(memlab) as program:
        program.do("small = allocate(MIB)")
        # THEN an operation without effect is refused at once
        assert "no device memory that could be moved" in program.refuse("offload")
        assert "nothing is offloaded" in program.refuse("restore")
        program.do("a = allocate(PAGE)")
        assert "nothing is offloaded" in program.refuse("restore")
        program.cycle()
        program.do("check()")
        program.end()


def test_without_offload_memory_comes_from_the_driver(memlab):
    # GIVEN a driver in which the functions for moving memory fail
    failing = ("cuMemCreate", "cuMemMap", "cuMemAddressReserve", "cuMemSetAccess", "cuMemHostRegister")
    env = {"SIMGPU_FAIL": ",".join(f"{name}:2" for name in failing)}
    with Console(memlab, offload=False, env=env) as program:
        program.do("a = allocate(3 * PAGE)", "check()")
        # THEN a program that was not started with offloading is unaffected, and the status explains why it cannot be
        # offloaded
        for ranges in ({}, {"ranges": [[program.do("a.address"), PAGE]]}):
            assert "was not started for offloading" in program.refuse("offload", **ranges)
        assert "was not started for offloading" in program.refuse("restore")
        move = program.move
        assert (move["enabled"], move["state"]) == (False, "resident") and "not started" in move["why_not"]
        program.do("check()", "a.free()")
        program.end()
    # AND a program that was started with it fails to allocate
    with Console(memlab, env=env) as program:
        assert program.do("cu.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_uint64(PAGE))") == OUT_OF_MEMORY


def test_a_blocking_host_callback(memlab):
    with Console(memlab) as program:
        # GIVEN a callback in a stream that waits for another thread of the program
        program.do(
            "a, go, stream = allocate(4 * PAGE), threading.Event(), asked('cuStreamCreate', 1)",
            "callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: go.wait() and None)",
            "later('callback', lambda: call('cuLaunchHostFunc', stream, callback, 0))",
        )
        # WHEN an offload is requested meanwhile, THEN the operation ends, successfully or not, and the program continues
        for _ in range(3):
            if program.run("offload", timeout_ms=1000)["phase"] == "done":
                program.succeed("restore")
            program.do("check()")
        program.do("go.set()")
        assert program.do("ended('callback')")
        program.cycle()
        program.do("check()")


def test_frees_finish_and_allocations_wait(memlab):
    with Console(memlab) as program:
        size = movable(program)
        free = program.do("free_bytes()", "gone = allocate(4 * PAGE)", "free_bytes()") + 4 * PAGE
        program.succeed("offload")
        # WHEN the program frees memory while it is offloaded, THEN the free does not wait
        program.do("gone.free()", "call('cuMemUnmap', again, PAGE)", "call('cuMemRelease', handle)")
        assert program.move["host_bytes"] == size
        # AND allocations and accesses wait
        program.do(
            "later('allocating', lambda: asked('cuMemAlloc_v2', 2 * PAGE))",
            "later('small', lambda: asked('cuMemAlloc_v2', 100))",
            "later('creating', lambda: create(PAGE))",
            "later('reading', lambda: large.check())",
            "later('pinning', lambda: asked('cuMemAllocHost_v2', 100))",
        )
        for name in ("allocating", "small", "creating", "reading", "pinning"):
            assert program.do(f"waits({name!r})")
        program.succeed("restore")
        for name in ("allocating", "small", "creating", "reading", "pinning"):
            assert program.do(f"ended({name!r})")
        # AND everything else is unchanged
        program.do("check()", "attach(again, PAGE, twin)", "both.check(again)")
        assert program.do("free_bytes()") == free - 3 * PAGE - 512
        program.end()


def test_all_memory_freed_while_offloaded(memlab):
    with Console(memlab) as program:
        free = program.do("free_bytes()", "a, b = allocate(PAGE), allocate(5 * PAGE)", "free_bytes()") + 6 * PAGE
        program.succeed("offload")
        program.do("a.free()", "b.free()")
        assert (program.move["state"], program.move["host_bytes"]) == ("offloaded", 0)
        # THEN nothing needs restoring, but the program must be woken
        program.succeed("restore", free_host=True)
        assert program.move["arena_bytes"] == 0
        program.do("c = allocate(PAGE)")
        program.cycle()
        program.do("check()", "c.free()")
        assert program.do("free_bytes()") == free
        program.end()


@pytest.mark.parametrize("ending", ["SIGTERM", "SIGKILL", "_exit", "exit"])
def test_a_program_can_end_while_offloaded(memlab, ending):
    # GIVEN a process whose memory is offloaded, and its parent on the same card
    with Console(memlab, offload=False, env={"MEMLAB": "0"}) as parent:
        environment = {"MEMLAB": "1", "MEMLAB_OFFLOAD": "1"}
        pid = parent.do(f"child = Other(**{environment})", "child.do('use(0)')", "child.process.pid")
        free = parent.do("free_bytes()")
        # AND an exit handler of the process that uses the card
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
        assert parent.do("child.do(\"waits('waiting')\")")
        # WHEN it ends while one of its threads waits
        if ending == "_exit":
            parent.do("print('os._exit(5)', file=child.process.stdin, flush=True)")
        elif ending == "exit":
            parent.do("print('libc.exit(5)', file=child.process.stdin, flush=True)")
        else:
            parent.do(f"child.process.send_signal(signal.{ending})")
        # THEN it ends, and its socket and memory on the card are gone
        code = parent.do("child.process.wait(PATIENCE_S)")
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


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "backend:cudaMallocAsync"])
def test_trainings(memlab, settings):
    # GIVEN training with data loader workers, and tensors that do not change
    env = {"PYTORCH_CUDA_ALLOC_CONF": settings} if settings else {}
    with Program(memlab, sys.executable, PROGRAMS / "loading.py", env=env) as program:
        assert program.process.stdout.readline() == "ready\n"
        for _ in range(5):
            if settings == "backend:cudaMallocAsync":
                # THEN memory in the driver's pools stays, and the rest is moved
                reply = program.ask("offload", **UNHURRIED)
                error = program.outcome(reply["operation"])["error"] if reply["ok"] else reply["error"]
                if error:
                    assert "holds no device memory that could be moved" in error
                    continue
            else:
                program.succeed("offload")
                assert program.move["host_bytes"] >= 64 * MIB
            time.sleep(0.01)
            program.succeed("restore")
        # THEN its data is intact, and it ends normally
        assert program.end().endswith("right\n")
        assert "memlab" not in program.errors
