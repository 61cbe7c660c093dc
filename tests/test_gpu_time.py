"""What runs on the GPU, and for how long, by the place that launched it: through CUPTI, here the simulated card's."""

import json
from collections import Counter

from conftest import PROGRAMS

PROGRAM = PROGRAMS / "timed.py"
TIMED = {"MEMLAB_TIME": "1"}


def run(memlab, case, *out, env=TIMED, code=0):
    trace = memlab.folder / f"{case}.jsonl"
    done = memlab.python(PROGRAM, case, *out, env=env | {"MEMLAB_OUTPUT": str(trace), "TRACE": str(trace)})
    assert done.code == code, done.errors
    return memlab.report(trace), done


def kernels(report):
    """Calls by name, without what their templates are filled with, in which demanglers differ."""
    calls = Counter()
    for row in report["kernels"]:
        if row["kind"] == "kernel":
            calls[base(row["name"])] += row["calls"]
    return calls


def base(name):
    return name.removeprefix("void ").split("<")[0].split("(")[0]


def test_kernels_are_those_of_the_profiler(memlab):
    # GIVEN the steps of a training as torch.profiler sees them
    out = memlab.folder / "seen.json"
    run(memlab, "profiled", out, env={})
    seen = json.loads(out.read_text())
    # WHEN memlab records the training without these steps, and with as many
    before, _ = run(memlab, "short")
    after, _ = run(memlab, "plain")
    # THEN it has the same kernels, as often, AND as long, but for how the profiler's clock is converted
    expected, nanoseconds = Counter(), 0
    for name, calls, microseconds in seen:
        if not name.startswith(("Memcpy", "Memset")):
            expected[base(name)] += calls
            nanoseconds += microseconds * 1000
    assert kernels(after) - kernels(before) == expected
    spent = [sum(row["gpu_time_ns"] for row in report["kernels"] if row["kind"] == "kernel") for report in (before, after)]
    assert abs(spent[1] - spent[0] - nanoseconds) <= nanoseconds / 100


def test_time_sums_up_and_belongs_to_lines_and_layers(memlab):
    # GIVEN a training that is recorded with its times
    report, done = run(memlab, "plain")
    assert "memlab" not in done.errors, done.errors
    # WHEN the report is made; THEN lines, layers, and kernels with copies each sum to the device's time
    device = report["devices"][0]
    total = device["gpu_time_ns"]
    assert total > 0
    for lines in ("lines", "library_lines"):
        assert sum(row["gpu_time_ns"] for row in report[lines]) == total
    assert sum(row["gpu_time_ns"] for row in report["layers"]) + device["outside_layers_gpu_time_ns"] == total
    assert sum(row["gpu_time_ns"] for row in report["kernels"] + report["copies"]) == total
    # AND each layer has forward and backward
    layers = {row["name"]: row for row in report["layers"]}
    for name in ("0.norm", "0.up", "1.norm", "1.up"):
        assert 0 < layers[name]["backward_gpu_time_ns"] < layers[name]["gpu_time_ns"], name
    # AND backward counts on the lines of forward
    source = PROGRAM.read_text().splitlines()
    lines = {source[row["line"] - 1].strip(): row for row in report["lines"] if row["file"] == str(PROGRAM)}
    forward = lines["return x + torch.tanh(self.up(self.norm(x)))"]
    assert 0 < forward["backward_gpu_time_ns"] < forward["gpu_time_ns"]
    assert lines["optimizer.step()"]["gpu_time_ns"] > 0
    # AND copies have their direction and bytes
    to_device = [row for row in report["copies"] if (row["from"], row["to"]) == ("pageable", "device")]
    assert sum(row["bytes"] for row in to_device) > 0
    # AND without --time there is none
    untimed, _ = run(memlab, "plain", env={})
    assert untimed["devices"][0]["gpu_time_ns"] is None
    assert untimed["kernels"] == untimed["copies"] == []


def test_a_graph_counts_where_it_is_launched(memlab):
    # GIVEN a captured forward that is replayed five times; WHEN it is recorded
    report, _ = run(memlab, "graphed")
    # THEN the line that replays it has its kernels' time
    source = PROGRAM.read_text().splitlines()
    lines = {source[row["line"] - 1].strip(): row for row in report["lines"] if row["file"] == str(PROGRAM)}
    assert lines["graph.replay()"]["gpu_time_ns"] > 0


def test_the_programs_profiler_goes_first(memlab):
    # GIVEN what torch.profiler sees of some steps without memlab's times
    out = memlab.folder / "seen.json"
    run(memlab, "profiled", out, env={})
    alone = sorted((name, calls) for name, calls, _ in json.loads(out.read_text()))
    # WHEN the program profiles itself in the middle of a run that is recorded with times
    report, done = run(memlab, "interrupted", out)
    # THEN it sees the same, AND memlab says so, once
    assert sorted((name, calls) for name, calls, _ in json.loads(out.read_text())) == alone
    assert done.errors.count("profiles itself with CUPTI") == 1
    # AND memlab has recorded before and (or the program would have waited) after
    assert report["devices"][0]["gpu_time_ns"] > 0


def test_a_killed_program_has_what_was_written(memlab):
    # GIVEN a program that is killed; WHEN it is recorded; THEN the trace has the sums written until then
    report, _ = run(memlab, "killed", code=-9)
    assert report["devices"][0]["gpu_time_ns"] > 0
