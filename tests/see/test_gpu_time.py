"""GPU time by the place that launched the work, measured through CUPTI, here the simulated card's."""

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from conftest import ON_GPU
from test_export import export, read_perfetto

PROGRAMS = Path(__file__).parent / "programs"

PROGRAM = PROGRAMS / "timed.py"
TIMED = {"MEMLAB_TIME": "1"}


def run(memlab, case, *out, env=TIMED, code=0, **options):
    trace = memlab.folder / f"{case}.jsonl"
    done = memlab.python(PROGRAM, case, *out, env=env | {"MEMLAB_OUTPUT": str(trace), "TRACE": str(trace)}, **options)
    assert done.code == code, done.errors
    return memlab.report(trace), done


def kernels(report):
    """Calls by name, without template arguments, which demanglers print differently."""
    calls = Counter()
    for row in report["kernels"]:
        if row["kind"] == "kernel":
            calls[base(row["name"])] += row["calls"]
    return calls


def base(name):
    return name.removeprefix("void ").split("<")[0].split("(")[0]


def test_kernels_are_those_of_the_profiler(memlab):
    # GIVEN a training's steps as torch.profiler sees them
    out = memlab.folder / "seen.json"
    run(memlab, "profiled", out, env={})
    seen = json.loads(out.read_text())
    # WHEN memlab records the training without these steps, and with as many
    before, _ = run(memlab, "short")
    after, _ = run(memlab, "plain")
    # THEN it has the same kernels and calls, AND the same times, except for the profiler's clock conversion
    expected, nanoseconds = Counter(), 0
    for name, calls, microseconds in seen:
        if not name.startswith(("Memcpy", "Memset")):
            expected[base(name)] += calls
            nanoseconds += microseconds * 1000
    assert kernels(after) - kernels(before) == expected
    spent = [sum(row["gpu_time_ns"] for row in report["kernels"] if row["kind"] == "kernel") for report in (before, after)]
    assert abs(spent[1] - spent[0] - nanoseconds) <= nanoseconds / 100


def test_time_sums_up_and_belongs_to_lines_and_layers(memlab):
    # GIVEN training that is recorded with its times
    report, done = run(memlab, "plain")
    assert "memlab" not in done.errors, done.errors
    # WHEN memlab reports on it; THEN lines, layers, and kernels with copies each sum to the device's time
    device = report["devices"][0]
    total = device["gpu_time_ns"]
    assert total > 0
    for lines in ("lines", "library_lines"):
        assert sum(row["gpu_time_ns"] for row in report[lines]) == total
    assert sum(row["gpu_time_ns"] for row in report["layers"]) == total
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
    # AND without --time the report has none
    untimed, _ = run(memlab, "plain", env={})
    assert untimed["devices"][0]["gpu_time_ns"] is None
    assert untimed["kernels"] == untimed["copies"] == []


def time_of(report, text):
    source = PROGRAM.read_text().splitlines()
    rows = [row for row in report["lines"] if row["file"] == str(PROGRAM) and source[row["line"] - 1].strip() == text]
    return sum(row["gpu_time_ns"] for row in rows)


def sums_up(report):
    for device in report["devices"]:
        of = [row for part in ("lines", "kernels", "copies") for row in report[part] if row["device"] == device["index"]]
        lines = sum(row["gpu_time_ns"] for row in of if "file" in row)
        assert lines == sum(row["gpu_time_ns"] for row in of if "file" not in row) == device["gpu_time_ns"]


def test_a_graph_counts_where_it_was_captured(memlab):
    # GIVEN a captured forward that is replayed five times; WHEN it is recorded
    before, _ = run(memlab, "short")
    after, _ = run(memlab, "graphed")
    # THEN its kernels ran five times, on the lines and layers of the model, and none on the line that replays it
    assert time_of(after, "graph.replay()") == 0
    forward = "return x + torch.tanh(self.up(self.norm(x)))"
    assert time_of(after, forward) > time_of(before, forward)
    norms = [
        sum(row["calls"] for row in report["kernels"] if "layer_norm_kernel" in row["name"]) for report in (before, after)
    ]
    assert norms[1] - norms[0] == 2 * 5
    forward = [
        {row["name"]: row["gpu_time_ns"] - row["backward_gpu_time_ns"] for row in report["layers"]}
        for report in (before, after)
    ]
    assert all(forward[1][name] > forward[0][name] for name in ("0.norm", "0.up", "1.norm", "1.up"))
    sums_up(after)


def test_time_by_step_and_how_busy_the_device_is(memlab):
    # GIVEN six steps; WHEN they are recorded
    report, _ = run(memlab, "plain")
    # THEN each has the same kernels, except for work before the first and after the last
    device, steps = report["devices"][0], report["gpu_steps"]
    assert [row["first_step"] for row in steps] == list(range(len(steps))) and len(steps) in (6, 7)
    assert all(row["steps"] == 1 for row in steps)
    assert len({row["calls"] for row in steps[1:6]}) == 1
    assert sum(row["gpu_time_ns"] for row in steps) == device["gpu_time_ns"]
    copied = sum(row["bytes"] for row in report["copies"] if row["to"] == "device" and row["from"] in ("pageable", "pinned"))
    assert sum(row["copied_to_device_bytes"] for row in steps) == copied > 0
    # AND the device's busy time is at most the sum of its work's times, and it waits for the program's Python
    assert 0 < device["gpu_busy_ns"] <= device["gpu_time_ns"]
    assert device["gpu_waits_for_host_ns"] > 0
    assert device["gpu_idle_ns"] >= 0


def test_some_steps_are_recorded_as_if_all_were(memlab):
    # GIVEN 24 recorded steps; WHEN only every fourth is recorded
    complete, _ = run(memlab, "long")
    sampled, done = run(memlab, "long", env=TIMED | {"MEMLAB_TIME_EVERY": "4", "MEMLAB_TIMELINE": "all"})
    assert "memlab" not in done.errors, done.errors
    # THEN each group of four has one, starting with the first step, AND it has all of its kernels
    calls = {row["first_step"]: row["calls"] for row in complete["gpu_steps"]}
    recorded = {row["first_step"]: row["calls"] for row in sampled["gpu_steps"]}
    assert sorted(step // 4 for step in recorded) == list(range(6)) and 0 in recorded
    assert recorded.items() <= calls.items()
    # AND the sums cover these steps
    sums_up(sampled)
    assert sum(recorded.values()) == sum(row["calls"] for row in sampled["kernels"] + sampled["copies"])
    assert [report["devices"][0]["gpu_timed_steps"] for report in (complete, sampled)] == [24, 6]
    text = subprocess.run(
        [memlab.command, "report", "--full", memlab.folder / "long.jsonl"], capture_output=True, text=True, check=True
    )
    assert "kernels, copies and fills, of 6 of 24 steps" in text.stdout
    # AND the time between them does not count, not even as waiting for the host
    if not ON_GPU:  # On a card, kernels run on after the step that launched them.
        device = sampled["devices"][0]
        shares = sum(device[f"gpu_{share}_ns"] for share in ("busy", "waits_for_host", "idle"))
        assert shares == sum(end - begin for begin, end in stretches(memlab.folder / "long.jsonl", set(recorded)))


def stretches(trace, recorded):
    """Time from the beginning of the first piece of work to the end of the last, for each group of recorded steps."""
    events = [json.loads(line) for line in trace.read_text().splitlines() if line.startswith("[")]
    ends = [event[1] for event in events if event[0] == "step"]
    ran = [(start, start + long) for start, long in (event[4:6] for event in events if event[0] == "ran")]
    found = []
    for step in sorted(recorded):
        began = ends[step - 1] if step else 0
        pieces = [piece for piece in ran if began <= piece[0] < ends[step]]
        first, last = min(start for start, _ in pieces), max(end for _, end in pieces)
        if step - 1 in recorded:
            first = found.pop()[0]
        found.append((first, last))
    return found


def test_a_wrong_number_of_steps_is_reported(memlab):
    # GIVEN an invalid number; THEN memlab reports it in one line, AND records all steps
    for text in ("0", "often"):
        report, done = run(memlab, "plain", env=TIMED | {"MEMLAB_TIME_EVERY": text})
        assert f'MEMLAB_TIME_EVERY is "{text}", not a number of steps' in done.errors
        assert report["devices"][0]["gpu_timed_steps"] == 6


@pytest.mark.parametrize("timeline", ["", "600", "all", "0"])
def test_the_timeline(memlab, timeline):
    # GIVEN training with a complete timeline, one of its last minutes or seconds, or none
    report, _ = run(memlab, "plain", env=TIMED | {"MEMLAB_TIMELINE": timeline})
    tracks, events = read_perfetto(export(memlab, memlab.folder / "plain.jsonl", "perfetto"))
    streams = [track.name for track in tracks if " stream " in track.name and not track.name.endswith("layers")]
    begun = [event for name in streams for _, event in events[name] if event.type == event.TYPE_SLICE_BEGIN]
    if timeline == "0":
        assert begun == []
        return
    # WHEN it is exported; THEN each kernel and copy is in it, with its line and layer
    calls = Counter({"copy": sum(row["calls"] for row in report["copies"])})
    for row in report["kernels"]:
        calls[row["kind"]] += row["calls"]
    found = Counter(event.categories[0] for event in begun)
    if not timeline:
        # The content of the last five seconds depends on the machine.
        assert begun and found <= calls
        return
    assert found == calls
    facts = [{fact.name: fact.string_value for fact in event.debug_annotations} for event in begun]
    assert {"0.norm", "1.up"} <= {fact.get("layer") for fact in facts}
    assert {"forward", "backward", "optimizer"} <= {fact["phase"] for fact in facts}
    # AND layers have a separate track
    layers = [event.name for name in streams for _, event in events[f"{name}, layers"] if event.name]
    assert {"0.norm", "0.up", "1.norm", "1.up"} <= set(layers)
    # AND kernels lie within the steps that launched them, or after
    steps = [time for time, event in events["optimizer steps"]]
    assert min(time for name in streams for time, _ in events[name]) <= max(steps)


def test_threads_and_a_fork(memlab):
    # GIVEN threads that launch at the same time; THEN each model's layer has its time
    report, _ = run(memlab, "threads")
    sums_up(report)
    assert sum(row["gpu_time_ns"] > 0 for row in report["layers"] if row["root_type"] == "Linear") == 4
    # GIVEN a child that does not use CUDA; THEN the parent continues
    report, _ = run(memlab, "forked")
    sums_up(report)
    alone, _ = run(memlab, "plain")
    assert kernels(report) == kernels(alone)


@pytest.mark.skipif(ON_GPU, reason="there may be one device only")
def test_two_devices_have_times_of_their_own(memlab):
    report, _ = run(memlab, "two_devices", devices=2)
    sums_up(report)
    assert [device["gpu_time_ns"] > 0 for device in report["devices"]] == [True, True]
    assert {row["device"] for row in report["kernels"]} == {0, 1}


@pytest.mark.long
def test_the_programs_profiler_goes_first(memlab):
    # GIVEN torch.profiler's record of some steps without memlab's times
    out = memlab.folder / "seen.json"
    run(memlab, "profiled", out, env={})
    alone = sorted((name, calls) for name, calls, _ in json.loads(out.read_text()))
    # WHEN the program profiles itself midway through a run that is recorded with times
    report, done = run(memlab, "interrupted", out)
    # THEN its profile is the same, AND memlab reports the profiler once
    assert sorted((name, calls) for name, calls, _ in json.loads(out.read_text())) == alone
    assert done.errors.count("uses CUPTI to profile itself") == 1
    # AND memlab has recorded before and (or the program would have waited) after
    assert report["devices"][0]["gpu_time_ns"] > 0


def test_a_killed_program_has_what_was_written(memlab):
    # GIVEN a program that is killed; WHEN it is recorded; THEN the trace has the sums written until then
    report, _ = run(memlab, "killed", code=-9)
    assert report["devices"][0]["gpu_time_ns"] > 0
    # AND the report counts the steps with complete records, which exclude the last ones
    timed, steps = report["devices"][0]["gpu_timed_steps"], len(report["steps"])
    assert timed < steps
    trace = memlab.folder / "killed.jsonl"
    text = subprocess.run([memlab.command, "report", "--full", trace], capture_output=True, text=True, check=True).stdout
    assert f", of {timed} of {steps} steps" in text


@pytest.mark.parametrize("end", ["_exit", "quick_exit"])
def test_a_program_that_ends_at_once_has_everything(memlab, end):
    # GIVEN a program that ends without exit handlers; WHEN it is recorded; THEN nothing is missing
    report, _ = run(memlab, end)
    assert (report["devices"][0]["gpu_timed_steps"], len(report["steps"])) == (6, 6)
    assert kernels(report) == kernels(run(memlab, "plain")[0])


def test_a_step_has_the_time_in_which_it_waited_for_its_batch(memlab):
    # GIVEN a slow dataset, which reads another DataLoader, and the program's measure of each wait
    trace = memlab.folder / "wait.jsonl"
    done = memlab.python(PROGRAMS / "data_wait.py", env=TIMED | {"MEMLAB_OUTPUT": str(trace)})
    assert done.code == 0 and "memlab" not in done.errors, done.errors
    measured = [tuple(map(int, line.split())) for line in done.output.split("\n") if line]
    # WHEN memlab reports on it; THEN each step's wait is longer than its dataset's, and shorter than the loop's
    steps = memlab.report(trace)["steps"]
    assert len(steps) == len(measured) == 6
    for step, (inner, outer) in zip(steps, measured, strict=True):
        assert inner <= step["data_wait_ns"] <= outer
    # AND nothing was launched before the batch came, so the first launch comes later than that
    assert steps[0]["launch_wait_ns"] is None
    for step in steps[1:]:
        assert step["launch_wait_ns"] > step["data_wait_ns"]
    # AND the report has the mean, with a remedy
    shown = subprocess.run([memlab.command, "report", "--full", trace], capture_output=True, text=True).stdout
    text = " ".join(shown.split())
    assert "waits" in text and "for the DataLoader" in text and "num_workers" in text
    # AND without --time, PyTorch's iterator stays as it is
    check = "from torch.utils.data import dataloader as d; torch.ones(1).cuda(); print(type(d._BaseDataLoaderIter.__next__))"
    plain = memlab.python("-c", f"import torch; {check}", env={"MEMLAB_OUTPUT": str(memlab.folder / "plain.jsonl")})
    assert plain.output.strip() == "<class 'function'>"
