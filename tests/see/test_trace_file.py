"""The path, replacement and size of trace files."""

import contextlib
import os
import resource
import subprocess
import time
from pathlib import Path

import pytest
from trace_reader import Trace
from waiting import HANG_SECONDS, wait_until

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def recorded(memlab):
    """Starts a program that needs neither PyTorch nor a card, under the library alone or under `memlab run`."""
    program = memlab.folder / "recorded"
    subprocess.run(["cc", "-O1", "-o", program, PROGRAMS / "recorded.c", "-lpthread"], check=True)

    def run(*arguments, command=(), preexec_fn=None, **env):
        preload = {} if command else {"LD_PRELOAD": memlab.library}
        environment = memlab.environment(**preload, MEMLAB_LIB=memlab.library, **env)
        return subprocess.run(
            [*map(str, command), program, *map(str, arguments)],
            cwd=memlab.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            preexec_fn=preexec_fn,
        )

    return run


def complaints(run):
    return [line for line in run.stderr.splitlines() if line.startswith("memlab:")]


def make_device(path):
    try:
        os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("no right to make a device")


@pytest.mark.parametrize("what", ["script", "pipe", "link", "device"])
def test_files_that_are_not_traces_are_not_replaced(memlab, recorded, what):
    # GIVEN a path that is taken by something other than a trace
    taken = memlab.folder / "taken.jsonl"
    if what == "script":
        taken.write_text("print('mine')\n")
    elif what == "pipe":
        os.mkfifo(taken)
    elif what == "link":
        taken.symlink_to("elsewhere")
    else:
        make_device(taken)
    before = taken.lstat()
    # WHEN a trace is to be written there
    run = recorded("forks", 0, MEMLAB_OUTPUT=taken)
    # THEN the program runs to its end, one line gives the reason for the missing trace, and the existing file is unchanged
    assert (run.returncode, run.stdout) == (0, "0 descriptors, 0 mappings, 0 deleted\n")
    (line,) = complaints(run)
    assert "replaces nothing but traces" in line and "without a trace" in line
    assert (taken.lstat().st_ino, taken.lstat().st_mode) == (before.st_ino, before.st_mode)
    # AND `memlab run` does not start the program
    run = recorded("forks", 0, command=[memlab.command, "run", "-o", taken, "--"])
    assert (run.returncode, run.stdout) == (2, "")
    assert "replaces nothing but traces" in run.stderr
    assert taken.lstat().st_ino == before.st_ino


def test_force_replaces_a_trace(memlab, recorded):
    command = [memlab.command, "run", "-o", "run.jsonl"]
    assert recorded("forks", 0, command=[*command, "--"]).returncode == 0
    first = (memlab.folder / "run.jsonl").read_text()
    # GIVEN the trace of an earlier run WHEN another run uses its name THEN `memlab run` requires --force
    run = recorded("forks", 0, command=[*command, "--"])
    assert (run.returncode, run.stdout) == (2, "") and "--force" in run.stderr
    assert (memlab.folder / "run.jsonl").read_text() == first
    # AND with --force it replaces the trace
    assert recorded("forks", 0, command=[*command, "--force", "--"]).returncode == 0
    assert (memlab.folder / "run.jsonl").read_text() != first


def test_pipes_without_readers_do_not_hang_anything(memlab, recorded):
    # GIVEN pipes without writers and readers, wherever memlab looks for traces or writes them
    temporary = memlab.folder / "tmp"
    temporary.mkdir()
    for name in ["memlab-recorded-1.jsonl", "run.jsonl.next", "tmp/run.jsonl", "tmp/memlab-recorded-1.jsonl"]:
        os.mkfifo(memlab.folder / name)
    # WHEN a program runs whose trace must be condensed
    run = recorded("pairs", 0, 100_000, 1, command=[memlab.command, "run", "--"], MEMLAB_TRACE_MAX="4MiB")
    assert run.returncode == 0 and "memlab report memlab-recorded-" in run.stderr
    run = recorded("pairs", 0, 400_000, 1, MEMLAB_OUTPUT="run.jsonl", MEMLAB_TRACE_MAX="4MiB")
    # THEN it ends, one line names the obstacle, and the trace can be read
    assert run.returncode == 0
    (line,) = complaints(run)
    assert "run.jsonl.next" in line and "pipe" in line
    assert memlab.report(memlab.folder / "run.jsonl")["process"]["exit"] == 0
    # AND a trace that cannot be written at its path goes beside the pipe in the temporary folder, where readers find it
    nowhere = {"MEMLAB_OUTPUT": "/proc/self/fd/run.jsonl", "TMPDIR": temporary}
    run = recorded("forks", 0, **nowhere)
    assert run.returncode == 0
    (line,) = complaints(run)
    assert str(temporary / "run-1.jsonl") in line
    if os.access("/proc/self/fd", os.W_OK):  # Otherwise `memlab run` reports that before it starts anything.
        run = recorded("forks", 0, command=[memlab.command, "run", "--"], **nowhere)
        assert run.returncode == 0 and "memlab report tmp/run-1.jsonl" in run.stderr
    # AND readers refuse it
    for command in ["report", "view"]:
        reading = [memlab.command, command, temporary / "run.jsonl"]
        done = subprocess.run(reading, capture_output=True, text=True, timeout=HANG_SECONDS)
        assert done.returncode != 0 and "it is a pipe" in done.stderr


def taken(trace):
    """Disk space of a trace and of the file that will replace it."""
    while True:
        following = 0
        with contextlib.suppress(FileNotFoundError), trace.open() as file:
            # The trace is measured last: it only shrinks once its successor grows.
            with contextlib.suppress(FileNotFoundError):
                following = trace.with_name(f"{trace.name}.next").stat().st_blocks
            found = os.fstat(file.fileno())
            # Two files count together only if none replaced the other between the two calls.
            if trace.stat().st_ino == found.st_ino:
                return (following + found.st_blocks) * 512


@pytest.mark.parametrize(
    ("live", "count", "threads", "maximum"),
    [(0, 150_000, 1, 4), (0, 30_000, 8, 4), (20_000, 150_000, 1, 4), (50_000, 150_000, 2, 16)],
)
def test_a_trace_never_exceeds_its_maximum(memlab, recorded, live, count, threads, maximum):
    # GIVEN a program that records much more than its maximum trace size
    env = memlab.environment(LD_PRELOAD=memlab.library, MEMLAB_OUTPUT="bounded.jsonl", MEMLAB_TRACE_MAX=f"{maximum}MiB")
    command = [memlab.folder / "recorded", "pairs", str(live), str(count), str(threads), str(1 << 20)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(command, cwd=memlab.folder, env=env, text=True, **pipes)
    trace = memlab.folder / "bounded.jsonl"
    assert process.stdout.readline() == "grown\n"
    assert taken(trace) > 1 << 20
    # THEN its files together never exceed it
    process.stdin.close()
    while process.poll() is None:
        assert taken(trace) <= maximum << 20
        time.sleep(0.001)
    output, errors = process.stdout.read(), process.stderr.read()
    # AND no descriptors or mappings of replaced files remain
    assert (process.returncode, output) == (0, "1 descriptors, 0 mappings, 0 deleted\n")
    assert list(memlab.folder.glob("bounded*")) == [memlab.folder / "bounded.jsonl"]
    # AND the trace is condensed and complete, and counts each missing event
    report = memlab.report(memlab.folder / "bounded.jsonl")
    assert report["process"]["exit"] == 0 and report["trace"]["skipped_lines"] == 0
    missing = report["trace"].get("missing_events", 0)
    ended = 1
    assert report["trace"]["events"] + missing == 1 + live + 2 * count * threads + ended
    assert report["devices"][0]["allocated_bytes"] >= live << 20
    assert errors.count("\n") == (1 if missing else 0), errors
    assert ("some are missing" in errors) == (missing > 0)


def test_a_full_trace_is_reported_once(memlab, recorded):
    # GIVEN a program that keeps more blocks alive than its trace has room for
    env = memlab.environment(LD_PRELOAD=memlab.library, MEMLAB_TRACE_MAX="4MiB")
    command, said = [memlab.folder / "recorded", "pairs", "90000", "50000", "1"], memlab.folder / "said"
    with said.open("w") as errors:
        process = subprocess.Popen(command, cwd=memlab.folder, env=env, stdin=subprocess.PIPE, stderr=errors)
    # THEN one line reports it, with a sufficient size
    wait_until(lambda: "alive at once" in said.read_text())
    process.communicate()
    assert process.returncode == 0
    lines = said.read_text().splitlines()
    (line,) = [line for line in lines if "alive at once" in line]
    assert "would be enough" in line
    # AND on a loaded machine, where memlab's thread is late, another reports missing events
    assert all("events come faster" in other for other in lines if other != line)
    # AND the trace holds the events that fit, and counts the missing ones
    (trace,) = memlab.folder.glob("*.jsonl")
    assert trace.stat().st_size <= 4 << 20
    report = memlab.report(trace)
    assert report["process"]["exit"] == 0
    assert report["trace"]["events"] + report["trace"]["missing_events"] == 1 + 90_000 + 100_000 + 1
    assert any("alive at once" in warning for warning in report["warnings"])


def test_objects_created_at_every_step_take_no_room(memlab):
    # GIVEN training that creates a loss, a layer with weights and a cell of code at every step
    run = memlab.python(PROGRAMS / "renewed.py")
    assert run.code == 0, run.errors
    trace = Trace(run.trace)
    # THEN the trace has few of them
    classes = [layer["type"] for layer in trace.layers.values()]
    assert classes.count("MSELoss") <= 3
    assert classes.count("Linear") <= 70
    cells = [frame for frame in trace.frames.values() if frame[0] == "<cell>"]
    assert 1 <= len(cells) <= 3


def test_children_that_only_free_memory_have_no_trace(memlab, recorded):
    # GIVEN forked children that each free memory that their parent had allocated
    run = recorded("forks", 40)
    assert (run.returncode, run.stderr) == (0, "")
    # THEN the parent's trace is the only one
    (trace,) = memlab.folder.glob("*.jsonl")
    assert memlab.report(trace)["devices"][0]["allocations"] == 1


def test_a_trace_that_cannot_be_written_is_not_a_program_without_memory(memlab, recorded):
    # GIVEN a limit of no bytes for a file
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    run = recorded("forks", 0, command=[memlab.command, "run", "-o", "t.jsonl", "--"], preexec_fn=limited)
    # THEN the summary names the limit
    assert "no trace was written: files can have at most 0 B here" in run.stderr
    assert "no CUDA memory" not in run.stderr


def test_a_limit_on_files_does_not_end_memlab_run(memlab, recorded):
    # GIVEN a file size limit that the trace reaches
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    alone = recorded("pairs", 0, 30_000, 1, preexec_fn=limited)
    run = recorded("pairs", 0, 30_000, 1, command=[memlab.command, "run", "-o", "t.jsonl", "--"], preexec_fn=limited)
    # THEN `memlab run` ends as the program does
    assert (alone.returncode, run.returncode) == (0, 0), run.stderr
    assert "File too large" in run.stderr and "t.jsonl" in run.stderr


def test_traces_with_changed_names_are_found(memlab, recorded):
    # GIVEN two programs that run at once and write to one path
    script = 'for i in 1 2; do "$@" & done; wait'
    command = [memlab.command, "run", "-o", "same.jsonl", "--", "sh", "-c", script, "sh"]
    (memlab.folder / "meeting").mkdir()
    run = recorded("meets", "meeting", command=command)
    # THEN both traces are in the summary
    assert run.returncode == 0
    assert "memlab report same.jsonl same-1.jsonl" in run.stderr or "same-1.jsonl same.jsonl" in run.stderr
    # AND so are those of programs that run one after the other, and none replaces another
    script = 'for i in 1 2 3; do "$@"; done'
    for options in [[], ["--force"]]:
        command = [memlab.command, "run", *options, "-o", "turns.jsonl", "--", "sh", "-c", script, "sh"]
        run = recorded("forks", 0, command=command)
        assert "memlab report turns.jsonl turns-1.jsonl turns-2.jsonl" in run.stderr, run.stderr
        assert run.stderr.count(" → turns") == 3, run.stderr
    # AND a full disk is not reported as a program without allocations
    disk, temporary = memlab.folder / "disk", memlab.folder / "tmp"
    disk.mkdir(), temporary.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("no right to mount")
    try:
        (disk / "full").write_bytes(b"x" * 4096)
        command = [memlab.command, "run", "-o", disk / "t.jsonl", "--"]
        run = recorded("forks", 0, command=command, TMPDIR=temporary)
        assert run.returncode == 0
        assert "No space left" in run.stderr and "memlab report tmp/t.jsonl" in run.stderr
        assert "no CUDA memory" not in run.stderr
    finally:
        subprocess.run(["umount", disk], check=True)


def test_an_invalid_limit_is_reported(memlab, recorded):
    run = recorded("forks", 0, MEMLAB_HOST_MAX="nonsense")
    assert run.returncode == 0
    (line,) = complaints(run)
    assert 'MEMLAB_HOST_MAX: "nonsense" is not a size' in line
