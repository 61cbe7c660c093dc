"""Moving memory of a program that captures a CUDA graph waits for the end of the capture."""

import time

import pytest
from moving import PAGE, Console


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
