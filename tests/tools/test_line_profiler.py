"""LineProfiler, profile, profile_every: pytorch_memlab's names, its README's numbers, and correct results where it errs."""

import json
import re
from pathlib import Path
from textwrap import dedent

import memlab as package
import pytest
from conftest import PYTHON, ROOT, runs_the_package
from memlab import _native
from memlab.compat._lines.columns import value_of
from tool_runs import START, run_tool
from waiting import HANG_SECONDS

README = """
import torch
from memlab import LineProfiler

def inner():
    torch.nn.Linear(100, 100).cuda()

def outer():
    linear = torch.nn.Linear(100, 100).cuda()
    linear2 = torch.nn.Linear(100, 100).cuda()
    inner()

with LineProfiler(outer, inner) as prof:
    outer()
prof.display()
"""

# Figures of functions as JSON: by function, by text of the line, by column.
FIGURES = """
import json, torch, memlab
from memlab import LineProfiler
from memlab.compat._lines.columns import value_of

def figures(prof, *columns):
    columns = columns or ("active_bytes.all.peak", "line.allocated", "line.kept", "line.hits", "line.peak_delta")
    return {
        one.code.name: {
            text.strip(): [value_of(column)(found) if found else None for column in columns]
            for _, text, found in one.rows()
        }
        for one in prof.profiles()
    }

def write(value):
    json.dump(value, open("result", "w"))
"""

MIB = 1 << 20


def rows(output, function):
    """Rows of a function in printed output: the cells in front of the code, by the code."""
    table = output.split(f"## {function}\n")[1].split("\n## ")[0]
    return {match[2].strip(): match[1].split() for match in re.finditer(r"^((?: *[\d.]+[BKMG]?)* +\d+)  (.*)$", table, re.M)}


@START
def test_the_example_of_the_readme_prints_its_numbers(memlab, preload):
    _, run = run_tool(memlab, README, preload)
    outer, inner = rows(run.output, "outer"), rows(run.output, "inner")
    assert [cells[:2] for cells in outer.values()] == [
        ["0.00B", "0.00B"],
        ["40.00K", "2.00M"],
        ["80.00K", "2.00M"],
        ["120.00K", "2.00M"],
    ]
    assert [cells[:2] for cells in inner.values()] == [["80.00K", "2.00M"], ["120.00K", "2.00M"]]
    assert "active_bytes reserved_bytes" in run.output and "linear2 = torch.nn.Linear(100, 100).cuda()" in outer


def test_every_counter_of_pytorch_is_a_column(memlab):
    # GIVEN a function that reads PyTorch's counters after each of its lines
    program = """
    stats = []
    def work():
        a = torch.zeros(1000, device="cuda")
        stats.append(torch.cuda.memory_stats())
        b = torch.zeros(3 << 20, device="cuda")
        stats.append(torch.cuda.memory_stats())
        del a
        stats.append(torch.cuda.memory_stats())
        c = torch.zeros((1 << 18) + 1, device="cuda")
        stats.append(torch.cuda.memory_stats())
        return c
    with LineProfiler(work) as prof:
        work()
    columns = [name for name in stats[0] if name.count(".") == 2 and not name.endswith("peak")]
    peaks = [name for name in stats[0] if name.count(".") == 2 and name.endswith("peak")]
    mine = figures(prof, *columns)["work"]
    try:
        prof.print_stats(columns=["active_bytes.al.peak"])
        said = ""
    except ValueError as error:
        said = str(error)
    lines = ['a = torch.zeros(1000, device="cuda")', 'b = torch.zeros(3 << 20, device="cuda")', "del a",
             "c = torch.zeros((1 << 18) + 1, device=\\"cuda\\")"]
    differences = [
        [line, column, own, stat[column]]
        for line, stat in zip(lines, stats)
        for column, own in zip(columns, mine[line])
        if own != stat[column]
    ]
    # Each line's peak is that of the whole run until then, because nothing is freed before `del`.
    of_peaks = figures(prof, *peaks)["work"]
    for line, stat in list(zip(lines, stats))[:2]:
        found = zip(peaks, of_peaks[line])
        differences += [[line, column, own, stat[column]] for column, own in found if own != stat[column]]
    write([len(columns), differences, said])
    """
    # WHEN its profile is shown THEN every counter at the end of every line is PyTorch's
    (count, differences, said), _ = run_tool(memlab, FIGURES + dedent(program))
    assert count >= 81 and differences == []
    # AND the error for an unknown column lists the valid ones
    assert "'active_bytes.al.peak' is not a column" in said and "reserved_bytes" in said and "line.kept" in said


def test_recursion_generators_exceptions_threads_and_backward(memlab):
    program = """
    import threading
    def fall(n):
        x = torch.zeros(1 << 18, device="cuda")
        if n:
            fall(n - 1)
        return 0
    def numbers(n):
        for i in range(n):
            y = torch.zeros(1 << 18, device="cuda")
            yield y
    def consume():
        return [y for y in numbers(3)]
    def fail():
        z = torch.zeros(1 << 18, device="cuda")
        raise KeyError
    def survive():
        try:
            fail()
        except KeyError:
            pass
        big = torch.zeros(1 << 20, device="cuda")
        return 0
    def worker():
        w = torch.zeros(1 << 19, device="cuda")
    def train(net, x):
        loss = net(x).sum()
        loss.backward()
        return loss
    net = torch.nn.Linear(1024, 1024, bias=False).cuda()
    x = torch.zeros(256, 1024, device="cuda")
    with LineProfiler(fall, numbers, consume, fail, survive, worker, train) as prof:
        fall(2)
        kept = consume()
        survive()
        thread = threading.Thread(target=worker); thread.start(); thread.join()
        train(net, x)
    write(figures(prof))
    """
    found, _ = run_tool(memlab, FIGURES + dedent(program))
    start = 5 * MIB  # The parameters and the input.
    # A line of a recursive function counts each block once, and its peak includes its calls.
    fall = found["fall"]
    assert fall['x = torch.zeros(1 << 18, device="cuda")'] == [start + 3 * MIB, 3 * MIB, 0, 3, MIB]
    assert fall["fall(n - 1)"] == [start + 3 * MIB, 2 * MIB, 0, 2, 2 * MIB]
    # A generator's lines run only while it runs; memory that its caller keeps counts as kept.
    assert found["numbers"]['y = torch.zeros(1 << 18, device="cuda")'][:3] == [start + 3 * MIB, 3 * MIB, 3 * MIB]
    (consumed,) = (cells for text, cells in found["consume"].items() if text.startswith("return"))
    assert consumed[1:3] == [3 * MIB, 3 * MIB]
    # A line that an exception left has ended: the caller's later lines do not count for it.
    held = start + 3 * MIB
    assert found["fail"]["raise KeyError"][0] == held + MIB
    assert found["survive"]["fail()"] == [held + MIB, MIB, 0, 1, MIB]
    assert found["survive"]['big = torch.zeros(1 << 20, device="cuda")'][1] == 4 * MIB
    # Threads are profiled.
    assert found["worker"]['w = torch.zeros(1 << 19, device="cuda")'][1:4] == [2 * MIB, 0, 1]
    # Backward's memory belongs to the lines of its operations; its peak to the line that called it.
    forward, backward = found["train"]["loss = net(x).sum()"], found["train"]["loss.backward()"]
    assert forward[2] >= 4 * MIB and backward[4] >= 4 * MIB


def test_the_def_line_shows_memory_at_the_call(memlab):
    # GIVEN code that is not profiled and peaks before each call
    program = """
    def work():
        a = torch.zeros(1 << 18, device="cuda")
        return a
    with LineProfiler(work) as prof:
        big = torch.zeros(16 << 20, device="cuda")
        del big
        kept = work()
    write(figures(prof))
    """
    found, _ = run_tool(memlab, FIGURES + dedent(program))
    # THEN that peak belongs to no line of the function
    assert found["work"]["def work():"][0] == 0
    assert found["work"]['a = torch.zeros(1 << 18, device="cuda")'][0] == MIB


def test_compiled_functions_are_seen(memlab):
    program = """
    def work(x):
        y = x * 2
        z = y @ y
        return z + 1
    compiled = torch.compile(work, backend="eager")
    class Work(torch.nn.Module):
        def forward(self, x):
            return x * 2
    module = torch.compile(Work(), backend="eager")
    x = torch.zeros(512, 512, device="cuda")
    with LineProfiler(work) as prof, LineProfiler(compiled) as same, LineProfiler(module) as forward:
        kept = compiled(x)
        again = compiled(x)
        module(x)
    write([figures(prof, "line.allocated", "line.kept"), figures(same, "line.allocated"), figures(forward)])
    """
    (found, same, forward), run = run_tool(memlab, FIGURES + dedent(program))
    assert sum(cells[1] or 0 for cells in found["work"].values()) >= 2 * MIB
    assert {text: cells[:1] for text, cells in found["work"].items()} == same["work"]
    assert list(forward) == ["Work.forward"]
    assert "another tool" not in run.errors


def test_profilers_leave_each_other_and_other_tracers_alone(memlab):
    # GIVEN a function that prints at exit, a tracer of the program, and a second profiler that starts and stops
    program = """
    import sys
    from memlab import profile
    @profile(columns=("active_bytes.all.peak", "line.hits"))
    def always():
        return torch.zeros(1 << 18, device="cuda")
    def sometimes():
        return torch.zeros(1 << 18, device="cuda")
    with LineProfiler(sometimes):
        sometimes()
    kept = [always(), always()]
    seen = []
    def tracer(frame, event, argument):
        seen.append(event)
        return tracer
    sys.settrace(tracer)
    with LineProfiler(sometimes) as prof:
        sometimes()
    still = sys.gettrace() is tracer
    sys.settrace(None)
    write([still, "line" in seen, figures(prof, "line.allocated")])
    """
    (still, traced, found), run = run_tool(memlab, FIGURES + dedent(program))
    # THEN each sees all its events
    assert still and traced
    assert found["sometimes"]['return torch.zeros(1 << 18, device="cuda")'] == [MIB]
    always = rows(run.output, "always")
    assert always['return torch.zeros(1 << 18, device="cuda")'][:2] == ["2.00M", "2"]


def test_profile_every_prints_every_nth_call(memlab):
    program = """
    from memlab import profile_every, clear_global_line_profiler, profile
    @profile_every(3, columns=("active_bytes.all.peak", "line.hits"))
    def work():
        return torch.zeros(1 << 18, device="cuda")
    @profile_every(1, enable=False)
    def never():
        return torch.zeros(1 << 18, device="cuda")
    for _ in range(8):
        work(); never()
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(100, 100)
        @profile
        def forward(self, inp):
            return self.fc(inp)
    net = Net().cuda()
    net(torch.zeros(10, 100, device="cuda"))
    clear_global_line_profiler()
    net(torch.zeros(10, 100, device="cuda"))
    try:
        profile_every(0)
    except ValueError as error:
        write(str(error))
    """
    said, run = run_tool(memlab, FIGURES + dedent(program))
    assert run.output.count("## work") == 2 and "## never" not in run.output
    assert rows(run.output, "work")['return torch.zeros(1 << 18, device="cuda")'][1] == "3"
    assert "return self.fc(inp)" in rows(run.output, "Net.forward") and "1 prints after every call" in said


def test_each_gpu_has_its_own_figures(memlab):
    # The example of pytorch_memlab's README, and a profiler of the other GPU.
    program = """
    from memlab import set_target_gpu
    def func():
        net1 = torch.nn.Linear(1024, 1024).cuda(0)
        set_target_gpu(1)
        net2 = torch.nn.Linear(1024, 1024).cuda(1)
        set_target_gpu(0)
        net3 = torch.nn.Linear(1024, 1024).cuda(0)
    def both():
        kept = torch.zeros(1 << 18, device="cuda:0"), torch.zeros(1 << 19, device="cuda:1")
    with LineProfiler(func) as prof:
        func()
    with LineProfiler(both, target_gpu=1) as other:
        both()
    write([figures(prof, "active_bytes.all.peak"), figures(other, "active_bytes.all.peak", "line.allocated")])
    """
    (found, other), _ = run_tool(memlab, FIGURES + dedent(program), devices=2)
    linear = 4 * MIB + 4096
    peaks = {text: cells[0] for text, cells in found["func"].items()}
    assert peaks["net1 = torch.nn.Linear(1024, 1024).cuda(0)"] == linear
    assert peaks["net2 = torch.nn.Linear(1024, 1024).cuda(1)"] == linear
    assert peaks["net3 = torch.nn.Linear(1024, 1024).cuda(0)"] == 2 * linear
    assert list(other["both"].values())[1] == [2 * MIB, 2 * MIB]


def two_lines(value):
    value = [value]
    return value


def of_device(line, device, scale, hits=1):
    """A row of the native module: counters and figures of a device, distinct numbers times `scale`."""
    first = line + two_lines.__code__.co_firstlineno
    current, peak, allocated, freed = (
        [[scale * (place + row) for row in range(3)] for _ in range(3)] for place in (1, 5, 9, 13)
    )
    own, sample = [scale * 100, scale * 7, scale * 60, scale * 20], [[scale, scale * 2, scale * 3, scale * 4]] * 9
    return 0, first, device, hits, current, peak, allocated, freed, scale * 50, own, sample


def test_a_line_of_several_devices(monkeypatch):
    # GIVEN a line that ran while each of two devices was profiled, and one that only another thread ran, on both
    rows = [of_device(1, 0, 1, hits=2), of_device(1, 1, 3, hits=1), of_device(2, 0, 1, hits=0), of_device(2, 1, 3, hits=0)]
    monkeypatch.setattr(_native, "profile_figures", lambda profile: rows)
    prof = package.LineProfiler(two_lines)

    def figures():
        names = ("hits", "allocated", "freed", "kept", "backward", "allocations", "peak_delta")
        columns = [f"line.{name}" for name in names]
        columns += ["active_bytes.all.current", "active_bytes.all.peak", "requested_bytes.all.current"]
        (table,) = prof.profiles()
        return {text.strip(): [value_of(column)(found) for column in columns] for _, text, found in table.rows() if found}

    # THEN the first line's allocated and freed bytes and its hits are the sums of both devices, in any order, AND its
    # counters and peaks are the maxima
    for _ in range(2):
        found = figures()
        assert found["value = [value]"] == [3, 400, 240, 160, 80, 28, 150, 3, 15, 3]
        rows.reverse()
    # AND the second has the figures of the currently profiled device
    assert found["return value"] == [0, 100, 60, 40, 20, 7, None, None, None, 1]


def test_missing_data_has_a_reason(memlab):
    program = """
    from memlab import profile
    @profile
    def never(): return 1
    def work(): return 1
    prof = LineProfiler(work)
    prof.print_stats()
    with prof:
        pass
    prof.display()
    LineProfiler().print_stats()
    said = []
    for wrong in (len, 3):
        try:
            LineProfiler(wrong)
        except TypeError as error:
            said.append(str(error))
    try:
        prof.display(never)
    except ValueError as error:
        said.append(str(error))
    write(said)
    """
    said, run = run_tool(memlab, FIGURES + dedent(program))
    assert "no data: the profiler was never enabled" in run.output
    assert run.output.count("no data: the function was not called while the profiler was enabled") == 2
    assert "no data: no function is profiled" in run.output
    assert [" has no Python code" in text for text in said] == [True, True, False] and "is not profiled" in said[2]


def test_a_profiler_goes_on_after_the_recording_was_stopped(memlab):
    program = """
    def work():
        return torch.zeros(1 << 18, device="cuda")
    prof = LineProfiler(work)
    with prof, memlab.watch() as watched:
        work()
    memlab.stop()
    stopped = [list(figures(prof, "line.hits")["work"].values()), watched.peak]
    with prof, memlab.watch() as other:
        kept = work()
    write([stopped, figures(prof, "line.hits", "line.allocated")["work"], watched.peak, other.kept])
    """
    (stopped, found, old, new), _ = run_tool(memlab, FIGURES + dedent(program))
    assert stopped == [[[None], [None]], 0] and old == 0 and new == MIB
    assert found['return torch.zeros(1 << 18, device="cuda")'] == [1, MIB]


def test_without_a_gpu_the_program_runs(memlab):
    program = """
    def work(): return torch.zeros(3).sum().item()
    with LineProfiler(work) as prof:
        value = work()
    prof.print_stats()
    write([value, prof._repr_html_()])
    """
    (value, html), run = run_tool(memlab, FIGURES + dedent(program), env={"CUDA_VISIBLE_DEVICES": ""})
    assert value == 0 and "no CUDA device" in html and "no data: there is no CUDA device" in run.output


def test_records_do_not_grow_and_html_has_bars(memlab):
    program = """
    import resource
    memlab.start()
    def work(n):
        for number in range(n):
            total = number + 1
        return torch.zeros(1 << 18, device="cuda")
    prof = LineProfiler(work)
    with prof:
        work(20_000)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(10):
            work(20_000)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    write([grown, figures(prof, "line.hits")["work"]["total = number + 1"], prof._repr_html_()])
    """
    (grown, hits, html), _ = run_tool(memlab, FIGURES + dedent(program))
    assert grown < 20 << 10  # KiB, where 400,000 records would take more
    assert hits == [220_000]
    assert "linear-gradient" in html and "torch.zeros(1 &lt;&lt; 18" in html


HITS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from memlab import LineProfiler
from memlab.compat._lines.columns import value_of
def fall(n):
    if n:
        fall(n - 1)
    return n
def numbers(n):
    for i in range(n):
        yield i
def consume():
    return list(numbers(3))
def fail():
    raise KeyError
def survive():
    try:
        fail()
    except KeyError:
        pass
    return 1
async def wait():
    import asyncio
    await asyncio.sleep(0)
    return 2
def tracer(frame, event, argument):
    return None
prof = LineProfiler(fall, numbers, consume, fail, survive, wait)
before = sys.gettrace()
with prof:
    fall(3); consume(); survive()
    import asyncio
    asyncio.run(wait())
assert sys.gettrace() is before
monitored = [sys.monitoring.get_tool(tool) for tool in range(6)] if hasattr(sys, "monitoring") else []
assert "memlab" not in monitored
hits = value_of("line.hits")
print(json.dumps({one.code.name: {text.strip(): hits(found) for _, text, found in one.rows() if found}
                  for one in prof.profiles()}))
"""


def pythons():
    found = [PYTHON, *sorted(str(path) for path in Path.home().glob(".pyenv/versions/3.1[0-9]*/bin/python"))]
    return found


@pytest.mark.parametrize("python", pythons())
def test_lines_are_marked_on_every_cpython(memlab, python):
    # GIVEN a CPython, with PyTorch or not, WHEN functions run THEN each line's count equals its executions
    script = memlab.folder / "hits.py"
    script.write_text(HITS)
    if not runs_the_package(python):
        pytest.skip("the package needs CPython 3.10")
    process = memlab.start(python, script, ROOT / "python", preload=False)
    output, errors = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 0, errors
    hits = json.loads(output)
    assert hits["fall"] == {"def fall(n):": 4, "if n:": 4, "fall(n - 1)": 3, "return n": 4}
    assert hits["fail"] == {"def fail():": 1, "raise KeyError": 1}
    assert hits["survive"]["fail()"] == 1 and hits["survive"]["return 1"] == 1
    assert hits["consume"] == {"def consume():": 1, "return list(numbers(3))": 1}
    assert hits["numbers"]["for i in range(n):"] == 4 and hits["wait"]["return 2"] == 1
