"""The output of `memlab export` and `memlab diff` for real programs, read with the tools of each format."""

import csv
import importlib.util
import json
import os
import pickle
import pickletools
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import jsonschema
import pytest
from conftest import ROOT, Memlab
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

pytestmark = pytest.mark.xdist_group("export")

PROGRAMS = Path(__file__).parent / "programs"

PROGRAM = PROGRAMS / "exported.py"


class Exported:
    """A program that ran under memlab, and the exports of its trace."""

    def __init__(self, folder, **options):
        self.memlab = Memlab(folder)
        run = self.memlab.python(PROGRAM, fresh=True, **options)
        assert run.code == 0, run.errors
        self.trace = run.trace
        self.report = self.memlab.report(run.trace)
        self.snapshot = pickle.loads((folder / "snapshot.pickle").read_bytes())

    def export(self, format, *arguments):
        return export(self.memlab, self.trace, format, *arguments)


def export(memlab, trace, format, *arguments):
    out = trace.with_name(f"out.{format}")
    command = [memlab.command, "export", trace, "--format", format, "-o", out, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=memlab.environment())
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return Exported(tmp_path_factory.mktemp("trained"), devices=2)


@pytest.fixture(scope="module")
def expandable(tmp_path_factory):
    return Exported(tmp_path_factory.mktemp("expandable"), env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})


def sums(rows, key, value, device=0):
    """Sums by name on one device, without zeros."""
    total = Counter()
    for row in rows:
        if row["device"] == device:
            total[row[key] if isinstance(key, str) else tuple(row[k] for k in key)] += row[value]
    return {name: bytes for name, bytes in total.items() if bytes}


@pytest.mark.parametrize("run", ["trained", "expandable"])
def test_a_snapshot_equals_pytorchs(run, request):
    # GIVEN PyTorch's own snapshot at the end, and memlab's at the same moment
    run = request.getfixturevalue(run)
    own, ours = run.snapshot, pickle.loads(run.export("memory_viz", "--at", "end").read_bytes())

    # THEN the segments are the same
    def segments(snapshot):
        keys = ("device", "address", "total_size", "allocated_size", "is_expandable", "segment_type")
        return sorted(tuple(segment[key] for key in keys) for segment in snapshot["segments"])

    assert len(segments(ours)) >= 2
    assert segments(ours) == segments(own)

    # AND so are the blocks, with the user's lines that allocated them
    def blocks(snapshot):
        return {
            block["address"]: (block["size"], [f for f in block["frames"] if f["filename"] == str(PROGRAM)])
            for segment in snapshot["segments"]
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        }

    own_blocks, our_blocks = blocks(own), blocks(ours)
    assert our_blocks.keys() == own_blocks.keys()
    assert {address: size for address, (size, _) in our_blocks.items()} == {a: s for a, (s, _) in own_blocks.items()}
    compared = 0
    for address, (_, frames) in own_blocks.items():
        if frames:
            lines = [(frame["line"]) for frame in frames]
            assert [frame["line"] for frame in our_blocks[address][1]] == lines, address
            compared += 1
    assert compared > 10

    # AND the events, in their order; PyTorch's requested sizes are memlab's allocated ones
    def events(snapshot):
        return [(event["action"], event.get("addr")) for event in snapshot["device_traces"][0] if event["action"] != "oom"]

    def without_maps(events):
        return [event for event in events if event[0] not in ("segment_map", "segment_unmap", "snapshot")]

    assert without_maps(events(ours)) == without_maps(events(own))
    (own_oom,), (our_oom,) = (
        [event for event in snapshot["device_traces"][0] if event["action"] == "oom"] for snapshot in (own, ours)
    )
    assert our_oom["size"] == own_oom["size"] == 1 << 40
    assert abs(our_oom["time_us"] - own_oom["time_us"]) < 1_000_000
    assert our_oom["frames"][0]["line"] == own_oom["frames"][0]["line"]


@pytest.mark.long
def test_pytorchs_own_tools_read_a_snapshot(trained, tmp_path):
    snapshot = trained.export("memory_viz")
    # GIVEN a cached script, which PyTorch's tool would download otherwise
    cache = tmp_path / ".cache"
    cache.mkdir()
    (cache / "flamegraph.pl").write_text("#!/bin/sh\ncat\n")
    (cache / "flamegraph.pl").chmod(0o755)
    tools = Path(importlib.util.find_spec("torch").origin).parent / "cuda" / "_memory_viz.py"

    def viz(*arguments):
        command = [sys.executable, tools, *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=tmp_path, env=os.environ | {"HOME": str(tmp_path)}
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    # THEN each tool accepts the snapshot, also when run as a script, and agrees with the report
    for arguments in (["stats", snapshot], ["trace_plot", snapshot, "-o", tmp_path / "page.html"]):
        subprocess.run([sys.executable, "-m", "torch.cuda._memory_viz", *arguments], check=True, capture_output=True)
    stats = viz("stats", snapshot)
    at_peak = trained.report["devices"][0]
    assert f"total_allocated: {at_peak['peak_allocated_bytes'] / 2**20:.1f}MiB" in stats
    assert f"total_reserved: {at_peak['reserved_bytes_at_peak'] / 2**20:.1f}MiB" in stats
    assert "cudaMalloc(" in viz("trace", snapshot)
    for plot in ("trace_plot", "segment_plot"):
        viz(plot, snapshot, "-o", "plot.html")
        assert "add_local_files" in (tmp_path / "plot.html").read_text()
    viz("memory", snapshot, "-o", "memory.svg")
    stacks = [line.rsplit(" ", 1) for line in (tmp_path / "memory.svg").read_text().splitlines()]
    assert sum(int(size) for stack, size in stacks if ";active_allocated;" in stack) == at_peak["peak_allocated_bytes"]
    assert any("exported.py" in stack for stack, _ in stacks)
    viz("segments", snapshot, "-o", "segments.svg")
    # AND so does the web page, which supports only these opcodes
    opcodes = "PROTO STOP NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 SHORT_BINUNICODE BINUNICODE EMPTY_LIST EMPTY_DICT"
    opcodes += " MARK APPENDS SETITEMS TUPLE2 MEMOIZE BINGET LONG_BINGET"
    assert {opcode.name for opcode, *_ in pickletools.genops(snapshot.read_bytes())} <= set(opcodes.split())


def test_json_sums_to_the_report(trained):
    report = trained.report
    for at, suffix in (("peak", "_at_peak"), ("end", "_at_end")):
        ours = json.loads(trained.export("json", "--at", at, "--device", "0").read_text())
        assert sums(ours["categories"], "name", "bytes") == sums(report["categories"], "name", f"bytes{suffix}")
        place = ("file", "line", "function")
        assert sums(ours["lines"], place, "live_bytes") == sums(report["lines"], place, f"live_bytes{suffix}")
        layer = ("root", "name")
        assert sums(ours["layers"], layer, "live_bytes") == sums(report["layers"], layer, f"live_bytes{suffix}")
        (device,) = ours["devices"]
        blocks = [block for segment in ours["segments"] for block in segment["blocks"]]
        assert sum(block["bytes"] for block in blocks) == device["allocated_bytes"]
        assert len(blocks) == device["live_blocks"] > 10
        assert sum(segment["bytes"] for segment in ours["segments"]) == device["reserved_bytes"]
        assert all(0 <= index < len(ours["frames"]) for stack in ours["stacks"] for index in stack)
        categories = {block["category"] for block in blocks}
        assert {"parameter", "gradient", "optimizer_state"} <= categories
    (peak,) = (row for row in report["devices"] if row["index"] == 0)
    ours = json.loads(trained.export("json").read_text())
    assert ours["devices"][0]["allocated_bytes"] == peak["peak_allocated_bytes"]
    assert ours["moment"]["time_ns"] == peak["peak_time_ns"]


def test_csv_has_the_same_blocks(trained):
    ours = json.loads(trained.export("json").read_text())
    with open(trained.export("csv"), newline="") as file:
        rows = list(csv.DictReader(file, strict=True))
    blocks = {(b["device"], b["address"]): b for s in ours["segments"] for b in s["blocks"]}
    assert {(int(row["device"]), int(row["address"])) for row in rows} == blocks.keys()
    for row in rows:
        block = blocks[int(row["device"]), int(row["address"])]
        assert (int(row["bytes"]), row["category"], row["layer"] or None) == (
            block["bytes"],
            block["category"],
            block["layer"],
        )
        frames = [ours["frames"][index] for index in reversed(ours["stacks"][block["stack"]])]
        assert row["stack"] == ";".join(f"{f['function']} ({f['file']}:{f['line']})" for f in frames)


def test_speedscope_matches_its_schema(trained):
    file = json.loads(trained.export("speedscope", "--at", "end").read_text())
    jsonschema.validate(file, json.loads((ROOT / "tests" / "see" / "schemas" / "speedscope.json").read_text()))
    for profile, device in zip(file["profiles"], trained.report["devices"], strict=True):
        assert sum(profile["weights"]) == profile["endValue"] == device["allocated_bytes"]
        assert len(profile["weights"]) == len(profile["samples"])
    held = Counter()
    for sample, weight in zip(file["profiles"][0]["samples"], file["profiles"][0]["weights"], strict=True):
        frames = [file["shared"]["frames"][index] for index in sample]
        assert frames[0]["name"] == "<module>"
        held[next(frame["line"] for frame in reversed(frames) if frame["file"] == str(PROGRAM))] += weight
    lines = sums(trained.report["lines"], "line", "live_bytes_at_end")
    assert held == lines


def read_perfetto(path):
    trace = perfetto_trace_pb2.Trace()
    trace.ParseFromString(path.read_bytes())

    def check(message):
        assert len(UnknownFieldSet(message)) == 0, message
        for field, value in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                for part in value if field.is_repeated else [value]:
                    check(part)

    tracks, events = {}, defaultdict(list)
    for packet in trace.packet:
        check(packet)
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        else:
            events[packet.track_event.track_uuid].append((packet.timestamp, packet.track_event))
    assert events.keys() <= tracks.keys()
    by_name = defaultdict(list)
    for uuid, of in events.items():
        assert [time for time, _ in of] == sorted(time for time, _ in of)
        by_name[tracks[uuid].name or tracks[uuid].thread.thread_name] += of
    return list(tracks.values()), by_name


def test_perfetto_reads_the_run_over_time(trained):
    report = trained.report
    device, start = report["devices"][0], report["process"]["start_unix_ns"]
    tracks, events = read_perfetto(trained.export("perfetto"))
    # THEN the counters peak at the report's values and times, and end at its final values
    for name in ("allocated", "reserved", "used"):
        values = [event.counter_value for _, event in events[f"cuda:0 {name}"]]
        assert values[-1] == device[f"{name}_bytes"], name
        assert max(values) == device[f"peak_{name}_bytes"] or name == "used"
    peak = max(events["cuda:0 allocated"], key=lambda event: event[1].counter_value)
    assert peak[0] == start + device["peak_time_ns"]
    # AND every change is in the trace
    assert len(events["cuda:0 allocated"]) > device["allocations"]
    # AND the steps, the threads' phases in them, the peak and the out-of-memory event
    steps = events["optimizer steps"]
    assert [event.name for _, event in steps if event.type == event.TYPE_SLICE_BEGIN] == [f"step {i}" for i in range(4)]
    ends = [time - start for time, event in steps if event.type == event.TYPE_SLICE_END]
    assert ends == [step["end_time_ns"] for step in report["steps"]]
    facts = {fact.name: fact.uint_value for fact in steps[0][1].debug_annotations}
    assert facts["peak_allocated_bytes"] == report["steps"][0]["peak_allocated_bytes"]
    phases = Counter(event.name for of in events.values() for _, event in of if "phase" in event.categories)
    assert phases["backward"] == 4 and phases["forward"] >= 4 and phases["optimizer"] >= 1
    instants = {event.categories[0]: (time, event) for time, event in events["cuda:0 events"]}
    assert instants.keys() == {"peak", "oom"}
    assert instants["oom"][0] == start + report["ooms"][0]["time_ns"]
    assert instants["oom"][1].name == "out of memory: 1.00 TiB requested"
    # AND the process and its threads have their names
    (process,) = (track.process for track in tracks if track.HasField("process"))
    assert (process.pid, process.process_name) == (report["process"]["pid"], "exported.py")
    threads = {track.thread.thread_name for track in tracks if track.HasField("thread")}
    assert "pt_autograd_0" in threads
    # AND an export up to a moment ends there
    _, events = read_perfetto(trained.export("perfetto", "--at", "step:1"))
    assert max(time for of in events.values() for time, _ in of) == start + report["steps"][1]["end_time_ns"]


def test_hostile_names_are_read_in_every_format(tmp_path):
    # GIVEN a trace with all characters that are special in the formats
    name = "=cmd|'\\x'!A0\x1b]0;\x07\u202e\",\r\n;\0<&>" + "x" * 300
    text = json.dumps(name)
    header = {"memlab": 1, "pid": 1, "command": ["python", name], "directory": "/gpt", "start_unix_ns": 1 << 60}
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        json.dumps(header)
        + f"""
{{"device":0,"name":{text},"total_bytes":1000000}}
{{"thread":1,"tid":7,"name":{text}}}
{{"frame":1,"file":"/gpt/a.py","line":null,"function":{text}}}
{{"stack":1,"parent":0,"frame":1}}
{{"layer":1,"parent":0,"type":"GPT","name":{text}}}
{{"range":1,"parent":1,"name":{text}}}
["range",500000000,1,1]
["a",1000000000,1,0,4096,1024,1,1,1]
["a",1000000000,1,0,4100,1024,1,1,1]
["oom",2000000000,1,0,18446744073709551615,4096,2097152,1,1]
"""
    )
    memlab = Memlab(tmp_path)
    function = "=cmd|'\\x'!A0�]0;��\",��;�<&>" + "x" * 300
    # THEN the reader of each format finds the names, without terminal control characters, and no cell is a formula
    with open(export(memlab, trace, "csv"), newline="") as file:
        row = next(csv.DictReader(file, strict=True))
    assert (row["function"], row["layer"], row["line"]) == ("'" + function, "'" + function, "")
    assert row["range"] == "'" + function
    ours = json.loads(export(memlab, trace, "json").read_text())
    assert ours["frames"][0]["function"] == ours["stray_blocks"][0]["layer"] == ours["stray_blocks"][0]["range"][0] == name
    speedscope = json.loads(export(memlab, trace, "speedscope").read_text())
    jsonschema.validate(speedscope, json.loads((ROOT / "tests" / "see" / "schemas" / "speedscope.json").read_text()))
    snapshot = pickle.loads(export(memlab, trace, "memory_viz", "--at", "end").read_bytes())
    assert snapshot["segments"][0]["blocks"][0]["frames"] == [{"filename": "/gpt/a.py", "line": 0, "name": function}]
    assert snapshot["device_traces"][0][-1]["size"] == (1 << 64) - 1
    tracks, events = read_perfetto(export(memlab, trace, "perfetto"))
    assert function in {track.thread.thread_name for track in tracks}
    assert [event.name for _, event in events["ranges of " + function]] == [function, ""]
    assert {fact.name for _, event in events["cuda:0 events"] for fact in event.debug_annotations} >= {"line", "layer"}


def test_two_moments_differ_by_the_kept_tensors(trained):
    command = [trained.memlab.command, "diff", "--json", f"{trained.trace}@step:1", f"{trained.trace}@step:3"]
    done = subprocess.run(command, capture_output=True, text=True, env=trained.memlab.environment())
    assert done.returncode == 0, done.stderr
    diff = json.loads(done.stdout)
    # One line keeps two more tensors of 3 MiB.
    assert diff["lines"][0]["change_bytes"] == 6 << 20
    assert diff["lines"][0]["file"] == str(PROGRAM)
    lines = PROGRAM.read_text().splitlines()
    assert "kept.append" in lines[diff["lines"][0]["line_after"] - 1]
    (allocated,) = (row for row in diff["totals"] if row["name"] == "allocated")
    assert sum(row["change_bytes"] for row in diff["lines"]) == allocated["change_bytes"]
    assert sum(row["after_bytes"] for row in diff["layers"]) == allocated["after_bytes"]
    (used,) = (row for row in diff["totals"] if row["name"] == "used")
    assert sum(row["after_bytes"] for row in diff["categories"]) == used["after_bytes"]
