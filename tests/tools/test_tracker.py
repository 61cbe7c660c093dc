"""memlab.tracker, memlab.watch, memlab.start and memlab.stop: figures inside the program, compared with PyTorch's own."""

from textwrap import dedent

import pytest
from memlab._tools.rows import Rows
from memlab.tracking import CategoryMemory
from tool_runs import START, run_tool

TRAINING = """
import json, time, torch, memlab
from torch import nn

def model():
    return nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)).cuda()

def truth():
    return [torch.cuda.memory_allocated(), torch.cuda.memory_reserved(),
            torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]

def own():
    totals = memlab.tracker.totals()
    return [totals.allocated, totals.reserved, totals.peak_allocated, totals.peak_reserved]

def write(value):
    json.dump(value, open("result", "w"))
"""


@START
def test_the_figures_are_those_of_pytorch(memlab, preload):
    # GIVEN training of three steps, WHEN the tracker is read after each of its parts
    program = """
    memlab.start()
    pairs = []
    net = model()
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(3):
        loss = net(torch.randn(512, 1024, device="cuda")).sum()
        pairs.append([own(), truth()])
        loss.backward()
        pairs.append([own(), truth()])
        optimizer.step()
        optimizer.zero_grad()
        pairs.append([own(), truth()])
    tracker = memlab.tracker
    now = torch.cuda.memory_allocated()
    sums = [sum(row.live for row in rows) for rows in (tracker.by_line(), tracker.by_layer())]
    blocks = sum(block.nbytes for block in tracker.live_blocks())
    categories = {row.category: row.live for row in tracker.by_category()}
    write([pairs, now, sums, blocks, categories, tracker.totals().used])
    """
    (pairs, now, sums, blocks, categories, used), _ = run_tool(memlab, TRAINING + dedent(program), preload)
    # THEN every figure is PyTorch's, and lines, layers, blocks and categories sum to them
    assert all(own == truth for own, truth in pairs)
    assert sums == [now, now] and blocks == now
    assert sum(categories.values()) == used
    parameters = (1024 * 1024 + 1024 + 10 * 1024) * 4 + 512  # The last bias has a block of 512 bytes.
    assert categories["parameter"] == parameters
    assert categories["optimizer_state"] >= 2 * parameters


@START
def test_the_use_of_a_whole_card_is_known_at_once(memlab, preload):
    # GIVEN a program that has not used its GPUs
    program = """
    import json, torch, memlab

    def own(card):
        whole = reporter.collect(card).devices[f"cuda:{card}"]
        rows = memlab.tracker.by_category(card)
        return [memlab.tracker.totals(card).used, sum(row.live for row in rows), whole.used]

    def driver(card):
        free, total = torch.cuda.mem_get_info(card)
        return total - free

    reporter, kept, found = memlab.MemReporter(), [], []
    before = [memlab.tracker.totals(0).used, torch.cuda.is_initialized()]
    for card in range(4):  # WHEN it makes its first tensors there, and more of them
        for mib in (1, 500):
            kept.append(torch.empty(mib << 20, dtype=torch.uint8, device=card))
            found.append([own(card), driver(card)])
    json.dump([before, found], open("result", "w"))
    """
    (before, found), _ = run_tool(memlab, program, preload, devices=4)
    # THEN the used bytes are the driver's right after each, with the context, AND no earlier query has created one
    assert before == [0, False]
    assert all(own == [driver] * 3 for own, driver in found), found


def test_memory_from_before_is_counted(memlab):
    # GIVEN a program that has used CUDA for a while, WHEN the first tool is used THEN PyTorch's existing memory is included
    program = """
    net = model()
    kept = torch.zeros(1 << 20, device="cuda")
    first = own()[:2], truth()[:2]
    del kept
    second = own()[:2], truth()[:2]
    write([first, second, {row.category: row.live for row in memlab.tracker.by_category()}])
    """
    (first, second, categories), _ = run_tool(memlab, TRAINING + dedent(program))
    assert first[0] == first[1] and second[0] == second[1]
    assert categories["parameter"] > 0


@START
def test_a_watch_measures_its_block(memlab, preload):
    # GIVEN watches inside each other, and a peak before them
    program = """
    memlab.start()
    big = torch.zeros(16 << 20, device="cuda")
    del big
    before = torch.zeros(1 << 18, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    start = torch.cuda.memory_allocated()
    with memlab.watch() as outer:
        kept = torch.zeros(1 << 20, device="cuda")
        with memlab.watch() as inner:
            temporary = torch.zeros(2 << 20, device="cuda")
            del temporary, before
        after = torch.zeros(1 << 10, device="cuda")
    peak = torch.cuda.max_memory_allocated()
    later = torch.zeros(32 << 20, device="cuda")
    lines = [[line.code, line.at_start, line.at_peak, line.at_end, line.allocated, line.kept] for line in outer.lines]
    write([[start, peak, outer.start, outer.peak, outer.end, outer.growth, outer.kept],
           [inner.start, inner.peak, inner.kept], lines, str(outer), memlab.tracker.peak().allocated])
    """
    (outer, inner, lines, text, peak), _ = run_tool(memlab, TRAINING + dedent(program), preload)
    start, torch_peak, *figures = outer
    mib = 1 << 20
    # THEN each has its own peak, and neither PyTorch's nor the tracker's is disturbed
    assert start == mib and torch_peak == 13 * mib
    assert figures == [mib, 13 * mib, 4 * mib + 4096, 12 * mib, 3 * mib + 4096]
    assert inner == [5 * mib, 13 * mib, -mib]
    assert peak >= 128 * mib
    # AND its lines show the holders: bytes at the start, at the peak and at the end, allocated and kept
    by_code = {code: figures for code, *figures in lines}
    assert by_code['kept = torch.zeros(1 << 20, device="cuda")'] == [0, 4 * mib, 4 * mib, 4 * mib, 4 * mib]
    assert by_code['temporary = torch.zeros(2 << 20, device="cuda")'] == [0, 8 * mib, 0, 8 * mib, 0]
    assert by_code['before = torch.zeros(1 << 18, device="cuda")'] == [mib, mib, 0, 0, 0]
    assert "later" not in str(lines) and "peak 13.0 MiB (12.0 MiB above the start), kept +3.00 MiB" in text


def test_a_watch_as_decorator_and_across_an_exception(memlab):
    program = """
    watching = memlab.watch()
    @watching
    def work(n):
        return torch.zeros(n, device="cuda")
    first = work(1 << 20)
    kept = [watching.last.kept]
    second = work(1 << 18)
    kept.append(watching.last.kept)
    try:
        with memlab.watch() as failed:
            third = torch.zeros(1 << 18, device="cuda")
            raise KeyError
    except KeyError:
        pass
    write([kept, failed.kept, work.__name__])
    """
    (kept, failed, name), run = run_tool(memlab, TRAINING + dedent(program))
    assert kept == [4 << 20, 1 << 20] and failed == 1 << 20 and name == "work"
    assert "work: peak 4.00 MiB" in run.output


@START
def test_the_peak_can_be_reset(memlab, preload):
    program = """
    memlab.start()
    a = torch.zeros(4 << 20, device="cuda"); del a
    b = torch.zeros(1 << 20, device="cuda")
    first = memlab.tracker.peak().allocated
    mark = memlab.tracker.mark("loaded")
    memlab.tracker.reset_peak()
    torch.cuda.reset_peak_memory_stats()
    c = torch.zeros(1 << 18, device="cuda"); del c
    at_peak = {row.code: row.at_peak for row in memlab.tracker.by_line()}
    write([first, memlab.tracker.peak().allocated, torch.cuda.max_memory_allocated(), at_peak,
           [tuple(mark) for mark in memlab.tracker.marks]])
    """
    (first, second, truth, at_peak, marks), _ = run_tool(memlab, TRAINING + dedent(program), preload)
    assert (first, second) == (16 << 20, 5 << 20) and truth == second
    assert at_peak['c = torch.zeros(1 << 18, device="cuda"); del c'] == 1 << 20
    (mark,) = marks
    assert mark[0] == "loaded" and mark[2:4] == [0, 4 << 20] and mark[5] == first


def test_threads_that_allocate_while_the_tracker_is_asked(memlab):
    # GIVEN threads that allocate and free, WHEN the tracker is read meanwhile THEN its parts agree with each other, and with
    # PyTorch in the end
    program = """
    import threading
    memlab.start()
    torch.zeros(1, device="cuda")
    def work():
        held = []
        for number in range(3000):
            held.append(torch.empty(256 * (number % 50 + 1), device="cuda"))
            if len(held) > 20:
                del held[::2]
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads: thread.start()
    bad = 0
    while any(thread.is_alive() for thread in threads):
        with memlab.watch() as watched:
            for _ in range(100): pass
        bad += sum(line.at_end for line in watched.lines) != watched.end
        bad += sum(line.at_peak for line in watched.lines) != watched.peak
    for thread in threads: thread.join()
    write([bad, own()[:2], truth()[:2]])
    """
    (bad, own, truth), _ = run_tool(memlab, TRAINING + dedent(program))
    assert bad == 0 and own == truth


def test_a_forked_child_has_its_own_books(memlab):
    program = """
    import os, multiprocessing
    memlab.start()
    def child(queue):
        kept = torch.zeros(1 << 18, device="cuda")
        queue.put([own()[:2], truth()[:2]])
    queue = multiprocessing.get_context("fork").Queue()
    process = multiprocessing.get_context("fork").Process(target=child, args=(queue,))
    process.start()
    of_child = queue.get()
    process.join()
    kept = torch.zeros(1 << 20, device="cuda")
    write([of_child, [own()[:2], truth()[:2]], process.exitcode])
    """
    (of_child, of_parent, code), _ = run_tool(memlab, TRAINING + dedent(program))
    assert code == 0
    assert of_child[0] == of_child[1] and of_parent[0] == of_parent[1] and of_child != of_parent


def test_a_trace_from_inside_the_program(memlab):
    # GIVEN a program that holds memory, and writes a trace only for a part of its run
    program = """
    before = torch.zeros(1 << 20, device="cuda")
    memlab.start()
    first = torch.zeros(1 << 18, device="cuda")
    memlab.start(output="part.jsonl")
    second = torch.zeros(1 << 19, device="cuda")
    in_trace = torch.cuda.memory_allocated()
    memlab.stop()
    third = torch.zeros(1 << 20, device="cuda")
    stopped = memlab.tracker.active
    memlab.start()
    again = own()[:2], truth()[:2]
    memlab.start(output="again.jsonl")
    fourth = torch.zeros(1 << 10, device="cuda")
    write([in_trace, stopped, again, torch.cuda.memory_allocated()])
    """
    (in_trace, active, again, at_end), run = run_tool(memlab, TRAINING + dedent(program))
    # THEN each trace begins with the existing memory, has later events, and ends where it was stopped
    assert sorted(trace.name for trace in run.traces) == ["again.jsonl", "part.jsonl"]
    part = memlab.report(run.folder / "part.jsonl")
    assert part["devices"][0]["allocated_bytes"] == in_trace
    source = (run.folder / "program.py").read_text().splitlines()
    lines = [source[line["line"] - 1].split()[0] for line in part["lines"] if line["line"]]
    assert sorted(lines) == ["first", "second"]
    assert memlab.report(run.folder / "again.jsonl")["devices"][0]["allocated_bytes"] == at_end
    # AND the tracker continues after a stop and a start
    assert not active and again[0] == again[1]


def test_a_recorded_program_keeps_its_trace(memlab):
    # GIVEN a program under memlab run, WHEN it requests another file THEN the error names the trace's path
    program = """
    kept = torch.zeros(1 << 18, device="cuda")
    try:
        memlab.start(output="other.jsonl")
        said = None
    except RuntimeError as error:
        said = str(error)
    memlab.stop()
    later = torch.zeros(1 << 18, device="cuda")
    write([said, torch.cuda.memory_allocated()])
    """
    (said, allocated), run = run_tool(memlab, TRAINING + dedent(program), preload=True)
    assert "is recorded to" in said and str(run.trace) in said
    assert memlab.report(run.trace)["devices"][0]["allocated_bytes"] == allocated


def test_objects_print_their_figures(memlab):
    # GIVEN a recorded program that has allocated; WHEN it prints the tools' objects
    program = """
    unmeasured, idle = repr(memlab.watch()), repr(memlab.tracker)
    with memlab.watch() as watched:
        held = torch.zeros(1 << 20, device="cuda")
    write([unmeasured, idle, repr(watched), repr(memlab.tracker), repr(memlab.tracker.by_category())])
    """
    (unmeasured, idle, watched, tracker, categories), _ = run_tool(memlab, TRAINING + dedent(program))
    # THEN objects without figures print that, and start no recording
    assert unmeasured == "<memlab.watch: no block was measured>"
    assert idle == "<memlab.tracker: nothing is recorded: call memlab.start()>"
    # AND the others show them in suitable units
    assert watched == "<memlab.watch: peak 4.00 MiB (4.00 MiB above the start), kept +4.00 MiB, start 0 B>"
    assert tracker.startswith("<memlab.tracker: 4.00 MiB allocated, ")
    assert categories.splitlines()[0].split() == ["category", "live", "at_peak"]
    assert ["workspace", "0", "B", "0", "B"] in [row.split() for row in categories.splitlines()]


def test_long_tables_are_cut():
    # GIVEN more rows than a screen has; THEN the first print, and the number of the others
    rows = Rows(CategoryMemory(f"kind {number}", number << 20, 0) for number in range(25))
    assert repr(rows).splitlines()[-2:] == ["kind 19   19.0 MiB      0 B", "… 5 more"]
    # AND they are a list of named tuples as before
    assert rows == list(rows) and rows[3].live == 3 << 20 and repr(Rows()) == "[]"


def test_importing_touches_neither_cuda_nor_torch(memlab):
    program = """
    import sys, json
    import memlab
    names = sorted(memlab.__all__)
    loaded = [name for name in ("torch", "numpy", "IPython") if name in sys.modules]
    memlab.watch, memlab.tracker, memlab.LineProfiler, memlab.profile
    loaded += [name for name in ("torch", "numpy", "IPython") if name in sys.modules]
    maps = open("/proc/self/maps").read()
    json.dump([loaded, "libmemlab.so" in maps, "libcuda.so" in maps], open("result", "w"))
    """
    (loaded, library, cuda), _ = run_tool(memlab, program, fresh=True)
    assert loaded == [] and not library and not cuda


@pytest.mark.parametrize("env", [{"CUDA_VISIBLE_DEVICES": ""}, {"MEMLAB": "0"}])
def test_tools_without_a_gpu_warn_once_and_return_nothing(memlab, env):
    program = """
    import json, torch, memlab
    with memlab.watch() as watched:
        pass
    tracker = memlab.tracker
    empty = [list(tracker.totals()), tracker.by_line(), tracker.by_layer(), tracker.live_blocks(), watched.lines]
    tracker.reset_peak(); tracker.mark("nothing"); memlab.stop()
    json.dump([empty, watched.peak, tracker.peak().allocated, torch.zeros(3).sum().item()], open("result", "w"))
    """
    (empty, peak, tracked, result), run = run_tool(memlab, program, env=env)
    assert empty == [[0] * 5, [], [], [], []] and peak == tracked == result == 0
    assert run.errors.count("memlab:") == 1 and "empty results" in run.errors and run.traces == []


def test_a_long_run_in_memory_stays_small_and_exact(memlab):
    # GIVEN events for more than half of the trace's maximum memory, so that the trace is rewritten without finished ones,
    # WHEN a watch runs all the time
    program = """
    def inodes():
        with open("/proc/self/maps") as maps:
            return {line.split()[4] for line in maps if "memfd:memlab " in line}
    memlab.start()
    kept = torch.zeros(1 << 18, device="cuda")
    first = inodes()
    with memlab.watch() as watched:
        for number in range(500_000):
            temporary = torch.empty(512, device="cuda")
            del temporary
        while first & inodes():  # A thread writes it, and another reads it.
            time.sleep(0.01)
        most = torch.zeros(1 << 20, device="cuda")
    with open("/proc/self/status") as status:
        shared = next(int(line.split()[1]) for line in status if line.startswith("RssShmem"))
    tracker = memlab.tracker
    write([watched.has_gap, tracker.lost_events, watched.peak, sum(line.allocated for line in watched.lines), own()[:2],
           truth()[:2], shared, sum(row.allocations for row in tracker.by_line())])
    """
    result, _ = run_tool(memlab, TRAINING + dedent(program), env={"MEMLAB_TRACE_MAX": "64MiB"}, timeout=600)
    gap, lost, peak, allocated, own, truth, shared, allocations = result
    # THEN it stays below its maximum, and nothing is lost
    assert shared < 64 << 10  # KiB
    assert (gap, lost) == (False, 0)
    assert peak == 5 << 20 and own == truth
    assert allocated == 500_000 * 2048 + (4 << 20) and allocations == 500_002


def test_two_devices(memlab):
    program = """
    first = torch.zeros(1 << 18, device="cuda:0")
    second = torch.zeros(1 << 20, device="cuda:1")
    tracker = memlab.tracker
    with torch.cuda.device(1):
        current = tracker.totals().allocated
    named = [tracker.totals(device).allocated for device in (0, 1, "cuda:1", torch.device("cuda", 0))]
    try:
        tracker.totals("cpu")
        said = ""
    except ValueError as error:
        said = str(error)
    with memlab.watch(device=1) as watched:
        third = torch.zeros(1 << 18, device="cuda:1")
    write([current, named, said, watched.kept, len(tracker.live_blocks(1))])
    """
    (current, named, said, kept, blocks), _ = run_tool(memlab, TRAINING + dedent(program), devices=2)
    assert current == 4 << 20 and named == [1 << 20, 4 << 20, 4 << 20, 1 << 20]
    assert "no GPU memory" in said and kept == 1 << 20 and blocks == 2


def test_everything_is_imported_without_ipython(memlab):
    program = """
    import json, sys
    sys.modules["IPython"] = None  # As if it were not installed.
    from memlab import *
    names = ("LineProfiler", "MemReporter", "tracker", "watch")
    json.dump([name for name in names if name in globals()], open("result", "w"))
    """
    names, _ = run_tool(memlab, program)
    assert names == ["LineProfiler", "MemReporter", "tracker", "watch"]
