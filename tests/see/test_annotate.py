"""Ranges that a program names, with `memlab.annotate` or NVTX: each has the bytes allocated in it, exactly."""

import csv
import json
import os
import pickle
import subprocess
import sysconfig
from collections import Counter
from functools import partial
from pathlib import Path

import jsonschema
import pytest
from conftest import ROOT
from test_export import export, read_perfetto
from trace_reader import Trace

PROGRAMS = Path(__file__).parent / "programs"

PROGRAM = PROGRAMS / "annotated.py"


def annotated(memlab, case, **options):
    env = {"PYTHONPATH": ROOT / "python"} | options.pop("env", {})
    run = memlab.python(PROGRAM, case, env=env, **options)
    assert run.code == 0, run.errors
    return run


def kept(run):
    """The program's own counts: bytes by path."""
    return {path: size for path, size in json.loads(run.output.splitlines()[-1]).items() if size}


def ranges(report, figure="live_bytes_at_end"):
    rows = {"/".join(row["path"]) or "outside": row[figure] for row in report["ranges"] if row[figure]}
    assert len(rows) == sum(row[figure] > 0 for row in report["ranges"])
    return rows


@pytest.mark.parametrize("case", ["plain", "suspended", "nvtx_program", "backward"])
def test_ranges_hold_what_pytorch_counts(memlab, case):
    # GIVEN a program that allocates in ranges, and reads PyTorch's counter before and after
    run = annotated(memlab, case)
    # WHEN its trace is read
    report = memlab.report(run.trace)
    # THEN each range holds the counter's bytes, and the rest is in no range
    assert ranges(report) == kept(run)
    (device,) = report["devices"]
    assert sum(ranges(report).values()) == device["allocated_bytes"]
    assert sum(ranges(report, "live_bytes_at_peak").values()) == device["peak_allocated_bytes"]
    # AND the program runs as without memlab
    alone = annotated(memlab, case, preload=False)
    assert (alone.output, alone.errors) == (run.output, run.errors)


def test_temporary_memory_counts_in_its_range(memlab):
    # GIVEN a range in which 7 MiB were allocated and freed three times, and 1 MiB kept each time
    report = memlab.report(annotated(memlab, "plain").trace)
    # THEN the range's allocated bytes over the run include both
    assert ranges(report, "allocated_bytes")["weights"] == 3 * (7 + 1) << 20
    assert ranges(report, "allocations")["weights"] == 6


def test_every_operation_a_range(memlab):
    # GIVEN training under PyTorch's emit_nvtx, which never uses a name twice
    run = annotated(memlab, "emitted")
    # THEN the ranges are those of operations, without the numbers
    report = memlab.report(run.trace)
    names = {name for row in report["ranges"] for name in row["path"]}
    assert {"aten::linear", "aten::relu"} <= names and len(names) < 100
    assert not any("seq =" in name or "op_id" in name for name in names)
    assert sum(ranges(report).values()) == report["devices"][0]["allocated_bytes"]
    assert run.errors == annotated(memlab, "emitted", preload=False).errors


def test_the_number_of_ranges_is_bounded(memlab):
    # GIVEN a program that numbers its steps, uses 10,000 other names, and forgets to close ranges
    run = annotated(memlab, "many")
    # THEN the first steps have separate ranges, the others share one, and no memory is lost
    report = memlab.report(run.trace)
    assert ranges(report) == kept(run)
    assert len(Trace(run.trace).ranges) < 5000
    # AND one line reports it
    said = "memlab: more than 4096 names of ranges: further ones count as part of the range around them\n"
    assert run.errors.count("memlab") == 1 and said in run.errors


def test_a_forked_child_is_in_its_parents_ranges(memlab):
    run = annotated(memlab, "forked", env={"MEMLAB_OUTPUT": "child.jsonl"})
    assert ranges(memlab.report(run.trace)) == kept(run)


def test_a_long_run(memlab):
    # GIVEN a run whose trace must be condensed while a range is open
    run = annotated(memlab, "long", env={"MEMLAB_TRACE_MAX": "4MiB"})
    # THEN nothing is missing
    report = memlab.report(run.trace)
    assert Path(run.trace).stat().st_size <= 4 << 20
    assert "missing_events" not in report["trace"]
    assert ranges(report) == kept(run)
    assert ranges(report, "allocations")["epoch/step"] == 40_000 + 2 * 4


def test_loaded_late(memlab):
    # GIVEN a program that starts memlab midway
    run = annotated(memlab, "late", preload=False, env={"MEMLAB_OUTPUT": "late.jsonl"})
    # THEN later ranges are known, including NVTX ones, and earlier memory is in no range
    assert ranges(memlab.report(run.trace)) == kept(run)


def test_a_profiler_keeps_its_ranges(memlab):
    # GIVEN a program whose NVTX ranges go to a profiler
    run = annotated(memlab, "nvtx_program", env={"NVTX_INJECTION64_PATH": "/opt/nsight/libToolsInjection64.so"})
    # THEN the profiler keeps them, and memlab records only its own ranges
    assert set(ranges(memlab.report(run.trace))) == {"outside", "ours"}


def test_a_child_without_memlab_is_left_alone(memlab):
    # GIVEN a child process that inherited the environment but not the library
    environment = {"NVTX_INJECTION64_PATH": "libmemlab.so", "MEMLAB_OUTPUT": "child.jsonl"}
    run = annotated(memlab, "child", preload=False, env=environment)
    # THEN nothing was loaded into it
    assert (run.errors, run.traces) == ("", [])


@pytest.fixture
def nvtx_headers():
    for folder in ("cu13/include", "nvtx/include"):
        include = Path(sysconfig.get_paths()["purelib"], "nvidia", folder)
        if (include / "nvtx3" / "nvToolsExt.h").exists():
            return include
    pytest.skip("this PyTorch comes without NVTX's headers")


def test_every_function_of_nvtx(memlab, nvtx_headers):
    # GIVEN a C program that opens ranges in every way that NVTX has
    program = memlab.folder / "nvtx"
    subprocess.run(["cc", "-O1", "-I", nvtx_headers, "-o", program, PROGRAMS / "nvtx.c", "-ldl", "-lpthread"], check=True)
    alone = memlab.run(program, preload=False)
    run = memlab.run(program)
    assert (run.code, run.output, run.errors) == (0, alone.output, "")
    # THEN the trace has each, with its enclosing ranges
    trace = Trace(run.trace)
    assert [trace.range_path(event[3]) for event in trace.events if event[0] == "range"] == [
        ["ascii"],
        ["ascii", "größer"],
        ["ascii", "größer", "extended"],
        ["ascii", "größer", "extended", "own: registered"],
        ["ascii", "größer", "own: registered"],  # Domains end their ranges in any order.
        ["ascii", "größer"],
        ["ascii"],
        [],
    ]


def test_the_report_has_a_table_of_ranges(memlab):
    trace = annotated(memlab, "plain").trace
    page = memlab.folder / "page.html"

    def report(*arguments):
        command = [memlab.command, "report", trace, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return page.read_text() if "--html" in arguments else done.stdout

    # THEN it is in the text, of the whole run and of a moment, and on the page
    for text in (report("--full"), report("--at", "end")):
        (row,) = (line for line in text.splitlines() if line.endswith("  setup/weights"))
        assert row.split()[:2] == ["2.00", "MiB"]
        assert "Named ranges" in text and "(outside any range)" in text
    for html in (report("--html", page), report("--html", page, "--at", "end")):
        assert ">Named ranges</h3>" in html and "setup/weights" in html


def test_exports_have_the_ranges(memlab):
    # GIVEN training in ranges
    run = annotated(memlab, "backward")
    report = memlab.report(run.trace)
    at_peak, at_end = ranges(report, "live_bytes_at_peak"), ranges(report)
    exported = partial(export, memlab, run.trace)

    # THEN the blocks of the moment name their ranges, and sum to the report's figures
    ours = json.loads(exported("json").read_text())
    assert {"/".join(row["path"]) or "outside": row["live_bytes"] for row in ours["ranges"]} == at_peak
    blocks = Counter()
    for segment in ours["segments"]:
        for block in segment["blocks"]:
            blocks["/".join(block.get("range", [])) or "outside"] += block["bytes"]
    assert blocks == at_peak
    with open(exported("csv"), newline="") as file:
        rows = Counter()
        for row in csv.DictReader(file, strict=True):
            rows[row["range"] or "outside"] += int(row["bytes"])
    assert rows == at_peak

    # AND a second profile for speedscope has the ranges around the calls
    file = json.loads(exported("speedscope", "--at", "end").read_text())
    jsonschema.validate(file, json.loads((ROOT / "tests" / "see" / "schemas" / "speedscope.json").read_text()))
    by_stack, by_range = file["profiles"]
    assert by_stack["endValue"] == by_range["endValue"] == report["devices"][0]["allocated_bytes"]
    assert by_range["name"] == "cuda:0 allocated at the end, by range"
    held = Counter()
    for sample, weight in zip(by_range["samples"], by_range["weights"], strict=True):
        frames = [file["shared"]["frames"][index] for index in sample]
        path = [frame["name"] for frame in frames if "file" not in frame and frame["name"] != "(no Python line)"]
        held["outside" if path == ["(outside any range)"] else "/".join(path)] += weight
    assert held == at_end

    # AND so does PyTorch's snapshot, at the place of PyTorch's own annotations, …
    snapshot = pickle.loads(exported("memory_viz", "--at", "end").read_bytes())
    allocated = Counter()
    for event in snapshot["device_traces"][0]:
        if event["action"] == "alloc":
            allocated[event.get("user_metadata", "outside")] += event["size"]
    assert allocated == ranges(report, "allocated_bytes")

    # … and the run over time, where each range is a slice of its thread
    _, events = read_perfetto(exported("perfetto"))
    depth, names = 0, set()
    (main,) = (name for name in events if name.startswith("ranges of") and "autograd" not in name)
    for _, event in events[main]:
        depth += 1 if event.type == event.TYPE_SLICE_BEGIN else -1
        assert depth >= 0
        names.add(event.name)
    assert depth == 0
    assert names == {"", "step", "forward", "backward", "again", "first", "second"}
    assert any("autograd" in name for name in events if name.startswith("ranges of"))


def test_a_difference_of_ranges(memlab):
    # GIVEN the ranges of two moments
    run = annotated(memlab, "plain")
    done = subprocess.run(
        [memlab.command, "diff", f"{run.trace}@0s", f"{run.trace}@end", "--json"], capture_output=True, text=True
    )
    # THEN the difference is the kept memory
    assert done.returncode == 0, done.stderr
    rows = {"/".join(row["path"]) or "outside": row["after_bytes"] for row in json.loads(done.stdout)["ranges"]}
    assert rows == kept(run)


def test_the_environment_is_not_changed_where_nothing_is_recorded(memlab):
    code = "import os; print(os.environ.get('NVTX_INJECTION64_PATH'))"
    assert memlab.python("-c", code, env={"MEMLAB": "0"}).output == "None\n"
    assert os.environ.get("NVTX_INJECTION64_PATH") is None
