"""The trace is complete however the program ends, and memlab does not change the program."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, Memlab
from trace_reader import Trace

PROGRAMS = Path(__file__).parent / "programs"


def events_of(path):
    """Every committed line of a trace that was cut off, parsed; fails on a line that is neither complete nor uncommitted."""
    events = []
    data = path.read_bytes()
    for line in data.split(b"\n"):
        text = line.rpartition(b"\0")[2]  # An uncommitted reservation is NULs …
        if not text or text.startswith(b'"'):  # … or a line without its first byte.
            continue
        events.append(json.loads(text))
    return events


@pytest.mark.parametrize("batch", range(8))
def test_sigkill_at_random_moments(memlab, batch):
    # GIVEN a program that allocates constantly (without PyTorch, because 200 of them are killed)
    program = memlab.folder / "churn"
    subprocess.run(["cc", "-O1", "-o", program, PROGRAMS / "churn.c", "-lpthread"], check=True)
    for number in range(25):
        output = memlab.folder / f"{number}.jsonl"
        environment = memlab.environment(LD_PRELOAD=memlab.library, MEMLAB_OUTPUT=output)
        process = subprocess.Popen([program], env=environment, stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        # WHEN it is killed at a random moment
        time.sleep(random.Random(batch * 1000 + number).uniform(0, 0.02))
        process.kill()
        said = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        # THEN no line is garbled, and each thread's events are consecutive
        counts = {}
        for event in events_of(output):
            if isinstance(event, list) and event[0] in ("a", "f"):
                address = event[4]
                thread, sequence = address >> 40, address & ((1 << 40) - 1)
                counts.setdefault(thread, [])
                counts[thread].append((sequence, event[0]))
        for sequences in counts.values():
            numbers = [sequence for sequence, kind in sequences if kind == "a"]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        # AND the events that the program reported as done are in the trace
        done = {}
        for word in said:
            thread, _, sequence = word.decode().partition(":")
            done[int(thread)] = int(sequence)
        for thread, sequence in done.items():
            assert (sequence, "f") in counts[thread]
        output.unlink()


def test_sigkill_of_a_training(memlab):
    process = memlab.start(sys.executable, PROGRAMS / "churn.py")
    assert [process.stdout.readline() for _ in range(3)] == ["ready\n", "1000\n", "2000\n"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    process.stderr.close()
    (trace,) = memlab.folder.glob("*.jsonl")
    # THEN the report reads it, states that the program was killed, and nothing is lost or garbled
    report = memlab.report(trace)
    assert report["process"]["exit"] is None
    assert report["trace"]["skipped_lines"] == 0
    assert report["devices"][0]["peak_allocated_bytes"] > 0


@pytest.mark.parametrize(
    ("ending", "code", "recorded"),
    [("return", 0, 0), ("exit", 3, 3), ("os._exit", 4, 4), ("exception", 1, 1), ("abort", -6, None), ("oom", 1, 1)],
)
def test_endings(memlab, ending, code, recorded):
    # GIVEN a program, and its result without memlab
    alone = memlab.run(sys.executable, PROGRAMS / "endings.py", ending, preload=False, fresh=True)
    # WHEN it runs under memlab
    run = memlab.python(PROGRAMS / "endings.py", ending, fresh=True)
    # THEN it ends as it does alone, with the same output
    assert (run.code, run.output) == (alone.code, alone.output) == (code, run.output)
    assert run.errors == alone.errors
    # AND the trace is complete
    report = memlab.report(run.trace)
    assert report["process"]["exit"] == recorded
    assert report["devices"][0]["peak_allocated_bytes"] == 4 << 20
    if ending == "oom":
        (oom,) = report["ooms"]
        assert oom["requested_bytes"] == 4 << 40
        assert oom["file"].endswith("endings.py")


def test_an_exit_code_is_what_the_parent_sees(memlab):
    # GIVEN a program whose exit code exceeds a byte
    run = memlab.python(PROGRAMS / "endings.py", "exit-300", fresh=True)
    # THEN its trace has the code that the system reports
    assert run.code == 44
    assert memlab.report(run.trace)["process"]["exit"] == 44


@pytest.mark.parametrize("workers", ["workers", "subprocess"])
def test_forked_children_are_silent(memlab, workers):
    run = memlab.python(PROGRAMS / "endings.py", workers, fresh=True)
    assert run.code == 0, run.errors
    assert "memlab" not in run.errors
    # THEN only the parent has a trace, and it ends with the parent
    assert memlab.report(run.trace)["process"]["exit"] == 0


def test_spawned_children_have_their_own_traces(memlab):
    run = memlab.python(PROGRAMS / "endings.py", "spawn", fresh=True)
    assert run.code == 0, run.errors
    reports = [memlab.report(trace) for trace in run.traces]
    # THEN parent and child each have a trace with only their allocations
    assert {report["process"]["exit"] for report in reports} == {0}
    peaks = {report["devices"][0]["peak_allocated_bytes"] for report in reports}
    assert len(reports) == 2
    assert peaks == {4 << 20, 5 << 20}  # The child imports the script, which allocates its tensor.


def test_torchrun_makes_a_trace_per_rank(memlab):
    run = memlab.python(
        *("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", PROGRAMS / "rank.py"),
        devices=2,
        env={"MEMLAB_OUTPUT": "rank-%r-of-%n-%h-%p.jsonl"},
    )
    assert run.code == 0, run.errors
    assert {trace.name.split("-")[1] for trace in run.traces} == {"0", "1"}
    for trace in run.traces:
        report = memlab.report(trace)
        rank = report["process"]["rank"]
        assert f"rank-{rank}-of-rank-" in trace.name
        assert [device["index"] for device in report["devices"]] == [rank]


def test_read_only_folder(memlab):
    # GIVEN a working directory in which no file can be created (root can write almost everywhere, but not here)
    elsewhere = memlab.folder / "tmp"
    elsewhere.mkdir()
    run = memlab.python(PROGRAMS / "endings.py", "return", cwd="/proc/self/fdinfo", env={"TMPDIR": elsewhere})
    # THEN the program runs, and one line names the trace's folder, which contains the trace
    assert (run.code, run.output) == (0, "done\n")
    (line,) = [line for line in run.errors.splitlines() if line.startswith("memlab:")]
    (trace,) = elsewhere.glob("*.jsonl")
    assert str(trace) in line
    assert memlab.report(trace)["process"]["exit"] == 0


def test_full_disk(memlab):
    # GIVEN a file system of 1 MiB
    disk = memlab.folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("no right to mount")
    try:
        run = memlab.python(PROGRAMS / "churn.py", "60000", env={"MEMLAB_OUTPUT": disk / "t.jsonl"})
        # THEN the program runs to its end, one line reports the full disk, and the written part is readable
        assert run.code == 0, run.errors
        (line,) = [line for line in run.errors.splitlines() if line.startswith("memlab:")]
        assert "No space left on device" in line
        assert memlab.report(disk / "t.jsonl")["trace"]["skipped_lines"] == 0
    finally:
        subprocess.run(["umount", disk], check=True)


def test_file_system_without_shared_mappings(memlab):
    # GIVEN a file system that refuses shared mappings (simulated by a preloaded mmap)
    shim = memlab.folder / "nomap.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", shim, PROGRAMS / "nomap.c", "-ldl"], check=True)
    run = memlab.python(PROGRAMS / "churn.py", "2000", env={"LD_PRELOAD": f"{memlab.library}:{shim}"}, preload=False)
    assert run.code == 0, run.errors
    # THEN the trace is complete
    report = memlab.report(run.trace)
    assert report["process"]["exit"] == 0
    assert report["devices"][0]["allocations"] == 2001


def test_long_traces_stay_bounded(memlab):
    # GIVEN little room for the trace, and a program that pauses before the three quarters at which events are lost
    limit = 6 << 20
    run = memlab.python(PROGRAMS / "churn.py", "100000", str(limit * 5 // 8), env={"MEMLAB_TRACE_MAX": "6MiB"})
    assert run.code == 0, run.errors
    assert "memlab" not in run.errors
    # THEN no file is larger, and the report equals that of an unbounded trace
    assert sum(path.stat().st_size for path in memlab.folder.iterdir()) <= limit
    bounded = memlab.report(run.trace)
    assert bounded["devices"][0]["allocations"] == 100001
    run.trace.unlink()
    run = memlab.python(PROGRAMS / "churn.py", "100000", str(1 << 40))
    whole = memlab.report(run.trace)
    assert run.trace.stat().st_size > limit
    for key in ("allocations", "peak_allocated_bytes", "allocated_bytes", "reserved_bytes", "peak_reserved_bytes"):
        assert bounded["devices"][0][key] == whole["devices"][0][key], key
    assert bounded["lines"] == whole["lines"]


def test_idle_threads_take_little_memory(memlab):
    # GIVEN a thousand threads at once, each of which reports a single block
    program = memlab.folder / "idle_threads"
    subprocess.run(["cc", "-O1", "-o", program, PROGRAMS / "idle_threads.c", "-lpthread"], check=True)
    # WHEN their memory is measured THEN each takes a few pages (memlab's, the stack's and the kernel's)
    run = memlab.run(program)
    assert run.code == 0, run.errors
    assert int(run.output) <= 32


@pytest.mark.long
def test_thread_sanitizer_finds_nothing(memlab):
    # GIVEN a program with threads under ThreadSanitizer
    program = memlab.folder / "reports"
    subprocess.run(["cc", "-g", "-O1", "-fsanitize=thread", "-o", program, PROGRAMS / "reports.c", "-lpthread"], check=True)
    if memlab.run(program, preload=False).code:
        pytest.skip("ThreadSanitizer does not run here")
    # WHEN it is recorded, as often as it takes for threads to hand each other their state,
    # THEN no report concerns memlab
    for _ in range(20):
        run = memlab.run(program)
        assert (run.code, run.output, run.errors) == (0, "done\n", "")


def test_a_thread_that_takes_the_gil_at_the_end(memlab):
    # GIVEN a thread that takes the GIL during interpreter shutdown in C++ that must not be unwound, like autograd's
    library = memlab.folder / "late_gil.so"
    subprocess.run(["c++", "-shared", "-fPIC", "-o", library, PROGRAMS / "late_gil.cpp"], check=True)
    program = f"""
import ctypes, threading, time
library = ctypes.CDLL({str(library)!r})
thread = threading.Thread(target=library.take_gil_at_the_end, daemon=True)
thread.start()
class Late:
    def __del__(self, asks=library.is_stuck, sleep=time.sleep):
        while not asks():
            sleep(0.001)
late = Late()
"""
    # WHEN it runs on the simulated card THEN it ends as on CPython 3.14
    run = memlab.python("-c", program)
    assert (run.code, run.errors) == (0, "")


def test_a_musl_program_runs_without_the_library(memlab):
    # GIVEN a program that needs musl's loader (here glibc's under that name, since musl may be missing)
    loader, source, program = (memlab.folder / name for name in ("ld-musl-x86_64.so.1", "musl.c", "musl"))
    loader.symlink_to("/lib64/ld-linux-x86-64.so.2")
    source.write_text('#include <stdio.h>\n#include <stdlib.h>\nint main(void) { puts(getenv("LD_PRELOAD")); return 3; }\n')
    subprocess.run(["cc", "-o", program, source, f"-Wl,--dynamic-linker={loader}"], check=True)
    # WHEN it is started by memlab
    run = memlab.run(memlab.command, "run", "--", program, preload=False)
    # THEN it runs without the library, which would have ended it, and memlab reports that
    assert (run.code, "libmemlab" in run.output) == (3, False)
    assert "is linked with musl" in run.errors.splitlines()[0], run.errors


def test_nothing_without_cuda(memlab):
    run = memlab.run("sh", "-c", "echo hello; exit 7")
    assert (run.code, run.output, run.errors) == (7, "hello\n", "")
    run = memlab.python("-c", "import torch; print(torch.cuda.is_available(), torch.ones(3).sum().item())")
    assert (run.code, run.output, run.errors) == (0, "True 3.0\n", "")
    assert run.traces == []


def test_switched_off(memlab):
    run = memlab.python(PROGRAMS / "endings.py", "return", env={"MEMLAB": "0"})
    assert (run.code, run.output, run.errors) == (0, "done\n", "")
    assert run.traces == []


def test_the_default_name(memlab):
    run = memlab.python(PROGRAMS / "endings.py", "return", fresh=True)
    process = memlab.report(run.trace)["process"]
    assert run.trace.name == f"memlab-endings-{process['pid']}.jsonl"
    assert Memlab.library.is_relative_to(ROOT) and os.path.isabs(process["command"][0])
    assert Trace(run.trace).warnings == []
