"""Every allocation of GPU memory is recorded once, whichever library makes it and however it reaches the driver."""

import subprocess
from collections import Counter
from pathlib import Path

import pytest
from conftest import RELEASE
from trace_reader import Trace

PROGRAMS = Path(__file__).parent / "programs"

BEFORE = 512


@pytest.fixture
def allocations(memlab):
    program = memlab.folder / "allocations"
    subprocess.run(
        ["cc", "-O1", "-o", program, PROGRAMS / "allocations.c", "-L", RELEASE, "-lsimgpu_cudart", "-ldl"], check=True
    )
    return program


@pytest.mark.parametrize("way", ["runtime", "driver", "table"])
def test_plain_programs(memlab, allocations, way):
    # GIVEN a C program without Python that allocates memory of every kind
    alone = memlab.run(allocations, way, preload=False)
    assert (alone.code, alone.errors) == (0, "")
    run = memlab.run(allocations, way)
    assert (run.code, run.output, run.errors) == (0, alone.output, "")
    # WHEN its trace is replayed
    live = Counter()
    sizes = {}
    for event in Trace(run.trace).events:
        if event[0] == "d+":
            _, _, _, device, address, size, kind, call, library, *_ = event
            sizes[kind, address] = size
            live[kind, size] += 1
            # THEN each has the name of its outermost call and of its caller
            assert call.startswith("cuda" if way == "runtime" else "cuMem" if kind != "array" else "cuArray")
            assert library == "allocations"
            assert device == (-1 if kind in ("pinned", "registered") else 0)
        elif event[0] == "d-":
            live[event[5], sizes.pop((event[5], event[4]))] -= 1
    # AND the live memory is the program's kept memory, each block once
    kept = Counter()
    for line in run.output.splitlines():
        kind, size = line.split()
        kept[kind, int(size)] += 1
    assert +live == kept
    assert memlab.report(run.trace)["process"]["exit"] == 0


def test_loaded_late(memlab):
    # GIVEN a Python program that loads libmemlab after it has used PyTorch, as a notebook does
    run = memlab.python(PROGRAMS / "late.py", memlab.library, preload=False)
    assert run.code == 0, run.errors
    assert "memlab:" not in run.errors
    before, allocated, reserved = map(int, run.output.split())
    # THEN later allocations are recorded with line and layer, and so are segments
    trace = Trace(run.trace)
    end = trace.at()
    assert end.allocated() == allocated
    assert end.reserved() == reserved
    lines = {trace.line(block.stack) for block in end.blocks.values() if not block.flags & BEFORE}
    assert {file.rpartition("/")[2] for file, _ in lines} == {"late.py"}
    # AND earlier blocks are marked as such, except those whose category can be known: a parameter
    assert sum(event[5] for event in trace.events if event[0] == "a" and event[8] & BEFORE) == before
    report = memlab.report(run.trace)
    held = {category["name"]: category["bytes_at_end"] for category in report["categories"]}
    assert held["before_memlab"] == (3 + 7) << 20
    assert held["parameter"] >= 512 * 512 * 4
    assert held["context"] == 256 << 20
    assert report["trace"]["anomalies"]["unknown_frees"] == 0
    assert {"", "0", "1"} <= {layer["name"] for layer in trace.layers.values()}


@pytest.mark.parametrize(
    "settings", ["expandable_segments:True", "backend:cudaMallocAsync", "pinned_use_cuda_host_register:True"]
)
def test_allocator_settings(memlab, settings):
    # GIVEN another configuration of PyTorch's allocator
    run = memlab.python(PROGRAMS / "settings.py", env={"PYTORCH_CUDA_ALLOC_CONF": settings})
    assert run.code == 0, run.errors
    allocated, reserved, requested = map(int, run.output.split())
    end = Trace(run.trace).at()
    if settings == "backend:cudaMallocAsync":
        # THEN, where PyTorch reports no blocks, the driver's are recorded
        live = Counter()
        for event in Trace(run.trace).events:
            if event[0] == "d+" and event[6] == "async":
                live[event[4]] = event[5]
            elif event[0] == "d-":
                live.pop(event[4], None)
        assert live.total() == requested
    else:
        # THEN the figures are PyTorch's
        assert (end.allocated(), end.reserved()) == (allocated, reserved)


def test_without_caching(memlab):
    # GIVEN PyTorch's allocator without caching, which reports no blocks and takes each from the driver
    run = memlab.python(PROGRAMS / "settings.py", env={"PYTORCH_NO_CUDA_MEMORY_CACHING": 1})
    assert run.code == 0, run.errors
    *_, requested = map(int, run.output.split())
    # THEN the driver's blocks are recorded, with lines, and nothing is shown as cached
    report = memlab.report(run.trace)
    (device,) = report["devices"]
    assert device["allocated_bytes"] == device["reserved_bytes"] == requested
    lines = {line["file"].rpartition("/")[2]: 0 for line in report["lines"]}
    for line in report["lines"]:
        lines[line["file"].rpartition("/")[2]] += line["live_bytes_at_end"]
    assert lines == {"settings.py": requested}
    held = {category["name"]: category["bytes_at_end"] for category in report["categories"]}
    assert (held["other"], held["cached"]) == (requested, 0)
    # AND freed memory is not counted: the dropped tensor is only in the peak
    assert device["peak_allocated_bytes"] > requested
    assert report["trace"]["anomalies"]["unknown_driver_frees"] == 0


@pytest.mark.parametrize("before", [True, False])
def test_composes_with_simgpu(memlab, before):
    # GIVEN both orders of combining memlab and the simulated GPU
    command = [memlab.simgpu, "--memory", "1GiB"]
    program = ["python3", "-c", "pass"]
    inside = [memlab.command, "run", "--no-live", "--"]
    command = [*command, *inside, *program] if before else [*inside, *command, *program]
    done = subprocess.run(command, cwd=memlab.folder, env=memlab.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
