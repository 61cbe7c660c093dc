"""Programs run as they do alone, also with few resources, or when their trace is removed."""

import os
import select
import socket
import subprocess
from pathlib import Path

import pytest
from conftest import RELEASE
from trace_reader import Trace
from waiting import wait_until

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def program(memlab):
    path = memlab.folder / "unharmed"
    subprocess.run(["cc", "-O1", "-o", path, PROGRAMS / "unharmed.c", "-L", RELEASE, "-lsimgpu_cudart"], check=True)
    return path


def pairs_in(path):
    """Number of allocations and frees in a program's trace, in the form of the program's output."""
    kinds = [event[0] for event in Trace(path).events]
    assert kinds.count("d+") == kinds.count("d-")
    return f"{kinds.count('d+')} pairs\n"


def complaints(run):
    return [line for line in run.errors.splitlines() if line.startswith("memlab:")]


def test_two_processes_with_one_name(memlab, program):
    # GIVEN two processes at a time that write to the same path
    env = {"MEMLAB_OUTPUT": "same.name.jsonl"}
    both = [memlab.start(program, "slowly", env=env, stdin=subprocess.PIPE) for _ in range(2)]
    assert [process.stdout.readline() for process in both] == ["ready\n", "ready\n"]
    said = [process.communicate() for process in both]
    # THEN each has its own file, with all its events
    files = [memlab.folder / "same.name.jsonl", memlab.folder / "same-1.name.jsonl"]
    processes = [memlab.report(file)["process"] for file in files]
    assert {process["pid"] for process in processes} == {process.pid for process in both}
    assert [process["exit"] for process in processes] == [0, 0]
    assert sorted((pairs_in(file), "") for file in files) == sorted(said)
    # AND a later process replaces the first file
    later = memlab.run(program, "churn", "7", env=env)
    assert later.traces == sorted(files)
    assert pairs_in(files[0]) == later.output == "7 pairs\n"


def test_exec_keeps_the_first_trace(memlab, program):
    # GIVEN a program that uses the card and execs another that does, with the same pid
    run = memlab.run(program, "exec")
    assert (run.code, run.output, run.errors) == (0, "10 pairs\n", "")
    # THEN each has a trace, and the first is not overwritten
    second, first = run.traces
    assert second.name == first.name.replace(".jsonl", "-1.jsonl")
    reports = [memlab.report(trace)["process"] for trace in (first, second)]
    assert reports[0]["pid"] == reports[1]["pid"]
    assert [report["exit"] for report in reports] == [None, 0]
    assert [event[5] for event in Trace(first).events if event[0] == "d+"] == [5 << 20]
    assert pairs_in(second) == run.output


@pytest.mark.parametrize("limit", ["file-size", "address-space", "both-limits"])
def test_limits(memlab, program, limit):
    # GIVEN a program with a resource limit that a full-size trace would exceed or use up
    alone = memlab.run(program, limit, preload=False)
    assert alone.code == 0, alone.errors
    run = memlab.run(program, limit)
    # THEN it succeeds as it does alone
    assert (run.code, run.output) == (0, alone.output)
    report = memlab.report(run.trace)
    assert report["trace"]["skipped_lines"] == 0
    if limit == "address-space":
        # AND its trace is complete
        assert run.errors == ""
        assert report["process"]["exit"] == 0
        assert pairs_in(run.trace) == run.output
    else:
        # AND its trace ends at the limit, which one line reports
        (line,) = complaints(run)
        assert "File too large" in line
        assert 1 << 20 < run.trace.stat().st_size <= 2 << 20


def test_files_that_reuse_memlabs_descriptors(memlab, program):
    # GIVEN a program that closes all descriptors and reuses memlab's descriptor numbers for its own files
    run = memlab.run(program, "closefrom")
    assert (run.code, run.output) == (0, "40001 pairs\n")
    # THEN the files contain only its own data
    files = list(memlab.folder.glob("own-*"))
    assert len(files) > 1000
    assert {file.read_bytes() for file in files} == {b"mine"}
    # AND one line reports that the trace ends there
    (line,) = complaints(run)
    assert "the program has closed the file" in line
    assert memlab.report(run.trace)["trace"]["skipped_lines"] == 0


def switches(pid):
    """Number of times that memlab's control thread has gone to sleep. It wakes every 250 ms."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    (thread,) = [task for task in tasks if (task / "comm").read_text() == "memlab\n"]
    (line,) = [line for line in (thread / "status").read_text().splitlines() if line.startswith("voluntary_ctxt_switches")]
    return int(line.split()[1])


def test_sockets_that_reuse_memlabs_descriptors(memlab, program):
    # GIVEN the same with listening sockets
    process = memlab.start(program, "server", stdin=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"
    answered = select.poll()
    clients = []
    for number in (*range(100), *range(980, 1090)):  # low numbers, and those to which memlab moves its own
        client = socket.socket(socket.AF_UNIX)
        client.connect(os.path.relpath(memlab.folder / f"own-{number}"))  # socket paths must be short
        client.send(b'{"command":"status"}\n')
        answered.register(client, select.POLLIN)
        clients.append(client)
    # WHEN memlab's thread has looked for clients several times
    before = switches(process.pid)
    wait_until(lambda: switches(process.pid) >= before + 4)
    # THEN it does not answer in the program's place
    assert answered.poll(0) == []
    process.communicate()
    assert process.returncode == 0
    for client in clients:
        client.close()


def test_a_closed_stderr_causes_no_signal(memlab, program):
    # GIVEN a standard error whose reader has closed it, and a message of memlab
    reader, writer = os.pipe()
    os.close(reader)
    run = memlab.run(program, "churn", "10", stderr=writer, env={"MEMLAB_TRACE_MAX": "nonsense"})
    os.close(writer)
    # THEN the program gets no signal
    assert (run.code, run.output) == (0, "10 pairs\n")
    assert pairs_in(run.trace) == run.output


@pytest.mark.parametrize("where", ["default", "program", "next"])
def test_lookups_without_cuda_find_nothing(memlab, where):
    # GIVEN a program that looks up CUDA's functions in a process without CUDA
    program = memlab.folder / "lookup"
    subprocess.run(["cc", "-o", program, PROGRAMS / "lookup.c", "-ldl"], check=True)
    environment = memlab.environment(LD_PRELOAD=memlab.library)
    done = subprocess.run([program, where], cwd=memlab.folder, env=environment, capture_output=True, text=True)
    # THEN it does not find memlab's functions either, and leaves no trace
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert not list(memlab.folder.glob("*.jsonl"))


@pytest.mark.parametrize("maximum", ["2GiB", "4MiB"])
@pytest.mark.parametrize("what", ["removed", "renamed", "replaced"])
def test_the_trace_is_removed_or_replaced(memlab, program, what, maximum):
    # GIVEN a program whose trace is removed, renamed or replaced while it runs
    env = {"MEMLAB_OUTPUT": "trace.jsonl", "MEMLAB_TRACE_MAX": maximum}
    trace, elsewhere = memlab.folder / "trace.jsonl", memlab.folder / "elsewhere.jsonl"
    said = memlab.folder / "said"
    with said.open("w") as errors:
        process = memlab.start(program, "slowly", env=env, stdin=subprocess.PIPE, stderr=errors)
    assert process.stdout.readline() == "ready\n"
    if what == "renamed":
        trace.rename(elsewhere)
    else:
        trace.unlink()
    if what == "replaced":
        trace.write_text("the user's own\n")
    print(file=process.stdin, flush=True)
    if maximum == "4MiB":
        wait_until(lambda: "memlab:" in said.read_text())
    output, _ = process.communicate()
    errors = said.read_text()
    # THEN it runs to its end
    assert (process.returncode, output[-6:]) == (0, "pairs\n"), errors
    left = {path.name for path in memlab.folder.iterdir()} - {"unharmed", "said", "trace.jsonl", "elsewhere.jsonl"}
    if maximum == "4MiB":
        # AND, if the trace must be condensed, one line reports that it ends there, and few files are left
        assert errors.count("memlab:") == 1
        assert len(left) <= 1
    else:
        assert (errors, left) == ("", set())
    # AND a renamed trace is complete, and a replacement file is unchanged
    if what == "renamed" and maximum != "4MiB":
        assert pairs_in(elsewhere) == output
        assert memlab.report(elsewhere)["process"]["exit"] == 0
    if what == "replaced":
        assert trace.read_text() == "the user's own\n"


@pytest.mark.parametrize(
    ("handler", "modules"),
    [("function", "kept"), ("method", "kept"), ("partial", "kept"), ("object", "kept"), ("function", "dropped")],
)
def test_exceptions_of_signal_handlers(memlab, handler, modules):
    # GIVEN a program with a signal handler that raises, sometimes while memlab's agent runs
    run = memlab.python(PROGRAMS / "interrupted.py", handler, modules)
    # THEN each exception arrives in the program, and no handler runs within the agent
    assert (run.code, run.output, run.errors) == (0, "raised 150\n", "")
    # AND the agent has run
    assert any(layer["name"] == "parts.0" or layer["name"] == "0" for layer in Trace(run.trace).layers.values())
