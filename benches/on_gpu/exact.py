"""Compares memlab's figures with PyTorch's to the byte, and layers with the sizes of their allocations.

    python benches/on_gpu/exact.py TRUTH.json TRACE.jsonl REPORT.json

compares the output of `tests/see/programs/exact.py`, its trace, and `memlab report --json` of that trace.
"""

import fnmatch
import json
import os
import sys
from collections import Counter
from pathlib import Path

from harness import SEE, TESTS, Skip, constant, difference
from trace_reader import BACKWARD, FORWARD, Trace

MODELS = constant(TESTS / "see" / "test_exact.py", "MODELS")
LAYERS = constant(TESTS / "see" / "test_layers.py", "CASES")
FROM_FORWARD, RECOMPUTED = 16, 32


def moments(truth, trace):
    """Checks that allocated, reserved and peak equal PyTorch's at every moment."""
    for number, moment in enumerate(truth["moments"]):
        then, device = trace.at(moment["unix_ns"]), moment["device"]
        found = {"allocated": then.allocated(device), "reserved": then.reserved(device), "peak": then.peak[device]}
        for key, value in found.items():
            yield from difference(f"moment {number}, device {device}, {key}", value, moment[key])


def the_end(truth, report):
    """Checks that the report's final figures equal PyTorch's."""
    last = {moment["device"]: moment for moment in truth["moments"]}
    yield from difference("devices", [device["index"] for device in report["devices"]], sorted(last))
    for device in report["devices"]:
        expected = last.get(device["index"], {})
        for key, of_torch in (
            ("allocated_bytes", "allocated"),
            ("reserved_bytes", "reserved"),
            ("peak_allocated_bytes", "peak"),
        ):
            yield from difference(f"report, device {device['index']}, {key}", device[key], expected.get(of_torch))


def lines(truth, report):
    """Checks that live bytes by line equal PyTorch's snapshot, which has no lines for memory allocated in backward."""
    found: Counter[str] = Counter()
    for line in report["lines"]:
        key = f"{line['file']}:{line['line']}" if line["file"] else "none"
        found[key] += line["live_bytes_at_end"] - line["backward_bytes_at_end"]
    expected = Counter(truth["lines"])
    without = expected.pop("none", 0)
    for key in sorted(found.keys() | expected.keys()):
        yield from difference(f"line {key}", found[key], expected[key])
    yield from difference("bytes made in backward", sum(line["backward_bytes_at_end"] for line in report["lines"]), without)


def backward(trace):
    """Checks that memory allocated in backward has the line and layer of a node in forward."""
    made = [block for block in trace.at().blocks.values() if block.phase == BACKWARD]
    for block in made:
        place = trace.line(block.stack), trace.layer_name(block.layer)
        if None in place:
            yield f"{block.bytes} bytes made in backward are without a line or a layer: {place}"
    if not any(block.flags & FROM_FORWARD for block in made):
        yield f"no block of {len(made)} made in backward is linked to forward"


def sums(report):
    """Checks that lines sum to allocated memory, and categories to the use that the driver reports."""
    for device in report["devices"]:
        index = device["index"]
        mine = [line for line in report["lines"] if line["device"] == index]
        for key, total in (("live_bytes_at_end", "allocated_bytes"), ("live_bytes_at_peak", "peak_allocated_bytes")):
            yield from difference(f"lines of device {index}, {key}", sum(line[key] for line in mine), device[total])
        categories = [category for category in report["categories"] if category["device"] == index]
        used = sum(category["bytes_at_end"] for category in categories)
        yield from difference(f"categories of device {index}", used, device["used_bytes"])


def names(truth, report):
    """Checks that parameters, gradients and optimizer state have their names."""
    for key, of_torch in (
        ("parameter_bytes", "parameters"),
        ("gradient_bytes", "gradients"),
        ("optimizer_state_bytes", "states"),
    ):
        found: Counter[str | None] = Counter()
        expected: Counter[str | None] = Counter()
        for layer in report["layers"]:
            found[layer["name"]] += layer[key]
        for name, size in truth[of_torch].items():
            expected[name.rpartition(".")[0]] += size
        for name in sorted(found.keys() | expected.keys(), key=str):
            yield from difference(f"{key} of {name!r}", found[name], expected[name])


def compare(truth, trace, report):
    """Returns the differences between memlab and PyTorch."""
    return [
        *moments(truth, trace),
        *the_end(truth, report),
        *lines(truth, report),
        *backward(trace),
        *sums(report),
        *names(truth, report),
        *trace.warnings,
    ]


def check_model(harness, folder, model):
    devices = 2 if model == "two_devices" else 1
    if devices > harness.devices:
        return Skip(f"needs {devices} GPUs")
    truth = folder / "truth.json"
    # The program queries every visible GPU, but memlab lists only those that are used.
    env = (
        {}
        if harness.simulated or "CUDA_VISIBLE_DEVICES" in os.environ
        else {"CUDA_VISIBLE_DEVICES": "0,1"[: 2 * devices - 1]}
    )
    run = harness.python(folder, SEE / "exact.py", model, truth, devices=devices, env=env)
    return compare(json.loads(truth.read_text()), Trace(run.trace), harness.report(run.trace))


def phase_of(flags):
    if flags & 3 == BACKWARD:
        return "recomputed" if flags & RECOMPUTED else "backward"
    return "forward" if flags & 3 == FORWARD else None


def check_layers(harness, folder, case):
    """Checks layers by results of distinct sizes, each of which must count at its layer."""
    run = harness.python(folder, SEE / "layers.py", case, folder / "expected.json")
    expected = json.loads((folder / "expected.json").read_text())
    trace = Trace(run.trace)
    met: dict[str, set[str]] = {phase: set() for phase in expected}
    wrong = []
    for event in trace.events:
        if event[0] != "a":
            continue
        size, layer, phase = str(event[5]), event[7], phase_of(event[8])
        if phase is None or size not in expected[phase]:
            continue
        met[phase].add(size)
        name, kind = expected[phase][size]
        found = trace.layers[layer] if layer else {"name": None, "type": None}
        if not fnmatch.fnmatchcase(str(found["name"]), name) or not fnmatch.fnmatchcase(str(found["type"]), kind):
            wrong.append(f"{size} bytes in {phase}: {found['name']} ({found['type']}) instead of {name} ({kind})")
    for phase, sizes in expected.items():
        missing = sorted(sizes.keys() - met[phase])
        if missing:
            wrong.append(f"never seen in {phase}: {missing}")
    return wrong


def check_autograd(harness, folder):
    """Checks that, with four threads, memory of a node's backward has the line that created the node."""
    run = harness.python(folder, SEE / "autograd.py", folder / "expected.json")
    expected = json.loads((folder / "expected.json").read_text())
    trace = Trace(run.trace)
    missing, wrong = set(expected), []
    for event in trace.events:
        if event[0] == "a" and event[8] & 3 == BACKWARD and str(event[5]) in expected:
            missing.discard(str(event[5]))
            found = trace.line(event[6])
            wrong += difference(f"line of {event[5]} bytes", found and found[1], expected[str(event[5])])
    return wrong + [f"never seen in backward: {sorted(missing)}"] * bool(missing)


if __name__ == "__main__":
    truth_file, trace_file, report_file = sys.argv[1:]
    different = compare(
        json.loads(Path(truth_file).read_text()), Trace(trace_file), json.loads(Path(report_file).read_text())
    )
    print("\n".join(different) or "no difference")
    sys.exit(bool(different))
