"""Checks driver memory of every kind, through every way to the driver, and memlab loaded late."""

import shutil
import sys
from collections import Counter
from pathlib import Path

from harness import LIBRARY, RELEASE, SEE, Failed, difference
from trace_reader import Trace

WAYS = ["runtime", "driver", "table"]
BEFORE = 512  # The flag of a block that existed when memlab was loaded.
SETTINGS = ["expandable_segments:True", "backend:cudaMallocAsync", "pinned_use_cuda_host_register:True"]


def link_to_cudart(harness):
    """Linker flags for the CUDA runtime of the toolkit, else of PyTorch."""
    if harness.simulated:
        return ["-L", RELEASE, f"-Wl,-rpath,{RELEASE}", "-lsimgpu_cudart"]
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    toolkit = Path(nvcc).resolve().parent.parent
    packages = [Path(entry) / "nvidia" for entry in sys.path if entry]
    folders = [toolkit / "lib64", toolkit / "targets/x86_64-linux/lib", *(f / "cu13/lib" for f in packages)]
    for folder in [*folders, *(f / "cuda_runtime/lib" for f in packages)]:
        found = sorted(folder.glob("libcudart.so*"))
        if found:
            return [found[0], f"-Wl,-rpath,{folder}"]
    raise Failed("found no libcudart.so")


def build_allocations(harness, folder):
    return harness.compile(SEE / "allocations.c", folder / "allocations", *link_to_cudart(harness))


def check_allocations(harness, folder, way):
    program = build_allocations(harness, folder)
    alone = harness.run(folder, program, way, memlab=False)
    if alone.code != 0:
        raise Failed(f"without memlab too: exit status {alone.code}: {alone.errors}")
    run = harness.run(folder, program, way)
    wrong = difference("exit status, output, stderr", (run.code, run.output, run.errors), (0, alone.output, alone.errors))
    live: Counter[tuple[str, int | None]] = Counter()
    sizes: dict[tuple[str, int], int] = {}
    for event in Trace(run.trace).events:
        if event[0] == "d+":
            _, _, _, device, address, size, kind, call, library, *_ = event
            sizes[kind, address] = size
            live[kind, size] += 1
            if not call.startswith("cuda" if way == "runtime" else "cuMem" if kind != "array" else "cuArray"):
                wrong.append(f"{size} bytes of {kind}: the call is {call}")
            wrong += difference(f"{size} bytes of {kind}, called from", library, "allocations")
            wrong += difference(f"{size} bytes of {kind}, device", device, -1 if kind in ("pinned", "registered") else 0)
        elif event[0] == "d-":
            size = sizes.pop((event[5], event[4]), None)
            live[event[5], size] -= 1
    kept: Counter[tuple[str, int | None]] = Counter()
    for line in alone.output.splitlines():
        kind, size = line.split()
        kept[kind, int(size)] += 1
    wrong += [f"memlab has {count} × {what} too many" for what, count in (live - kept).items()]
    wrong += [f"memlab lacks {count} × {what}" for what, count in (kept - live).items()]
    return wrong + difference("recorded exit", harness.report(run.trace)["process"]["exit"], 0)


def check_settings(harness, folder, settings):
    run = harness.python(folder, SEE / "settings.py", env={"PYTORCH_CUDA_ALLOC_CONF": settings})
    allocated, reserved, *more = map(int, run.output.split())
    trace = Trace(run.trace)
    if settings != "backend:cudaMallocAsync":
        end = trace.at()
        return difference("allocated and reserved", (end.allocated(), end.reserved()), (allocated, reserved))
    # PyTorch reports no blocks, so memlab records the driver's, with the requested sizes.
    live = {}
    for event in trace.events:
        if event[0] == "d+" and event[6] == "async":
            live[event[4]] = event[5]
        elif event[0] == "d-":
            live.pop(event[4], None)
    return difference("bytes from the driver's pool", sum(live.values()), more[0] if more else allocated)


def check_late(harness, folder):
    run = harness.python(folder, SEE / "late.py", LIBRARY, memlab=False)
    before, allocated, reserved = map(int, run.output.split())
    trace = Trace(run.trace)
    end = trace.at()
    wrong = difference("allocated", end.allocated(), allocated) + difference("reserved", end.reserved(), reserved)
    earlier = sum(event[5] for event in trace.events if event[0] == "a" and event[8] & BEFORE)
    wrong += difference("what was there before", earlier, before)
    places = {trace.line(block.stack) for block in end.blocks.values() if not block.flags & BEFORE}
    wrong += difference("files", {place and Path(place[0]).name for place in places}, {"late.py"})
    names = {layer["name"] for layer in trace.layers.values()}
    if not {"", "0", "1"} <= names:
        wrong.append(f"layers are {names}")
    return wrong
