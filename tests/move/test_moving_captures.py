"""Offloading waits for the end of a CUDA graph capture."""

import pytest
from moving import PAGE, Console
from waiting import wait_until


def is_waiting(program):
    return program.move["operation"]["phase"] == "waiting"


def test_offload_waits_for_a_capture(memlab):
    with Console(memlab) as program:
        program.do("a = allocate(PAGE)", "stream = asked('cuStreamCreate', 1)", "begin_capture(stream)")
        # WHEN an offload is requested while the program captures a graph
        number = program.start("offload")
        wait_until(lambda: is_waiting(program))
        # THEN the capture continues and can end
        program.do("call('cuMemsetD8Async', a.address, 7, PAGE, stream)")
        assert "another operation (offload) is under way" in program.refuse("restore")
        for _ in range(20):
            assert program.move["state"] == "offloading"
        program.send("graph = end_capture(stream)")
        # AND memory moves only afterwards
        assert program.outcome(number)["phase"] == "done"
        program.succeed("restore")
        program.reply()
        # AND the graph can be replayed, at its captured addresses, while memory is offloaded and restored
        for _ in range(3):
            program.do("call('cuGraphLaunch', graph, stream)", "check()")
            program.cycle()
        program.end()


@pytest.mark.parametrize("host_memory", ["1GiB", "8MiB"])
def test_memory_that_grows_during_a_capture(memlab, host_memory):
    with Console(memlab, env={"MEMLAB_HOST_MAX": host_memory}) as program:
        # GIVEN two pages, one of them to be moved, and an address range behind them to be moved completely
        program.do(
            "at = reserve(10 * PAGE)",
            "holds(attach(at, 2 * PAGE, create(2 * PAGE)), 2 * PAGE)",
            "more = create(8 * PAGE)",
            "stream = asked('cuStreamCreate', 1)",
            "begin_capture(stream)",
        )
        address = program.do("at")
        number = program.start("offload", ranges=[[address, PAGE], [address + 2 * PAGE, 8 * PAGE]])
        wait_until(lambda: is_waiting(program))
        # WHEN the program maps other memory there before the operation starts
        program.do("everything.append(Memory(attach(at + 2 * PAGE, 8 * PAGE, more), 8 * PAGE))")
        program.send("graph = end_capture(stream)")
        operation = program.outcome(number)
        program.reply()
        # THEN the operation also moves that
        if host_memory == "1GiB":
            assert operation["phase"] == "done", operation
            assert program.move["host_bytes"] == 9 * PAGE
            program.succeed("restore")
        else:  # OR the error states the missing bytes, and nothing is moved
            assert "MEMLAB_HOST_MAX allows 8.00 MiB" in operation["error"], operation
            assert program.move["host_bytes"] == 0
        program.do("check()")
        program.end()


def test_a_free_during_a_capture(memlab):
    with Console(memlab) as program:
        program.do("a = allocate(4 * PAGE)", "b = allocate(PAGE)", "stream = asked('cuStreamCreate', 1)")
        free = program.do("free_bytes()")
        # GIVEN a capture
        program.do("begin_capture(stream)")
        # WHEN memory is freed meanwhile, THEN the call succeeds, the capture stays valid, and the free takes effect after
        # its end
        program.do("a.free()")
        assert program.do("free_bytes()") == free
        program.do("graph = end_capture(stream)", "call('cuGraphLaunch', graph, stream)")
        assert program.do("free_bytes()") == free + 4 * PAGE
        # AND the remaining memory moves as before
        program.cycle()
        program.do("check()")


def test_an_unfinished_capture_is_not_disturbed(memlab):
    with Console(memlab) as program:
        program.do("a = allocate(PAGE)", "stream = asked('cuStreamCreate', 1)", "begin_capture(stream)")
        for what in ("offload", "move"):
            ranges = {"ranges": [[program.do("a.address"), PAGE]]} if what == "move" else {}
            # WHEN it does not end in time, THEN nothing is moved and the program continues
            assert "capturing a CUDA graph" in program.fail("offload", timeout_ms=100, **ranges)
            program.do("call('cuMemsetD8Async', a.address, 7, PAGE, stream)")
        # AND calls that resemble its end or another start change nothing
        program.do(
            "later('stranger', lambda: end_capture(stream))",
            "with suppress(Failed): begin_capture(stream); print('begun')",
            "with suppress(Failed): ended('stranger'); print('ended')",
        )
        assert "capturing a CUDA graph" in program.fail("offload", timeout_ms=100)
        # AND the capture is still valid
        program.do("graph = end_capture(stream)", "call('cuGraphLaunch', graph, stream)")
        program.cycle()
        program.do("check()")
        program.end()
