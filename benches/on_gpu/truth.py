"""Compares memlab with CUPTI, which reports from the driver: the same addresses and bytes in the same order.

CUPTI observes through `libcupti_truth.so` (bindgen/examples/cupti_truth.rs). In a separate run, addresses differ, so
allocations are numbered. In the process that memlab records, addresses must be equal.
"""

import sys
from collections import defaultdict
from pathlib import Path

from harness import RELEASE, SEE, Failed, Skip, difference
from interception import WAYS, build_allocations
from trace_reader import Trace

PROGRAMS_BY_NAME = [*WAYS, "mlp"]
# Kinds that both report in the same way …
COMPARED = {"device", "async", "managed", "pinned"}
# … and kinds that memlab reports, but CUPTI may report as the kind given, or not at all.
OPTIONAL = {"registered": "pinned", "array": "array", "physical": "device", "imported": "device"}


def observer():
    for place in (RELEASE / "libcupti_truth.so", RELEASE / "examples" / "libcupti_truth.so"):
        if place.exists():
            return place
    return None


def libcupti():
    """The CUPTI of PyTorch, else of the toolkit."""
    packages = [Path(entry) / "nvidia" for entry in sys.path if entry]
    folders = [f / name for f in packages for name in ("cu13/lib", "cuda_cupti/lib")]
    folders += [Path("/usr/local/cuda/extras/CUPTI/lib64"), Path("/usr/local/cuda/lib64")]
    for folder in folders:
        found = sorted(folder.glob("libcupti.so.1[0-9]"))
        if found:
            return found[-1]
    return None


def by_cupti(path):
    """[(operation, kind, address, bytes)] in order of time, and the rest of the file."""
    if not path.exists():
        raise Failed("the driver did not inject the observer: it wrote nothing")
    events, ended = [], None
    for line in path.read_text().splitlines():
        match line.split():
            case [("alloc" | "free" | "other") as operation, kind, address, size, _, time]:
                events.append((int(time), operation, kind, int(address), int(size)))
            case ["end", dropped]:
                ended = int(dropped)
            case ["failed", *why]:
                raise Failed("the observer failed: " + " ".join(why))
    if ended != 0:
        raise Failed("the observer was cut short" if ended is None else f"CUPTI dropped {ended} records")
    return [event[1:] for event in sorted(events, key=lambda event: event[0])]


def by_memlab(trace):
    events, sizes = [], {}
    for event in sorted((e for e in trace.events if e[0] in ("d+", "d-")), key=lambda event: event[1]):
        if event[0] == "d+":
            sizes[event[6], event[4]] = event[5]
            events.append(("alloc", event[6], event[4], event[5]))
        else:
            events.append(("free", event[5], event[4], sizes.pop((event[5], event[4]), None)))
    return events


def in_common(memlab, cupti):
    """Both, without events that only one of them can report."""
    at = {(kind, address) for _, kind, address, _ in cupti}
    ours = []
    for operation, kind, address, size in memlab:
        if kind in COMPARED:
            ours.append((operation, kind, address, size))
        elif (OPTIONAL.get(kind), address) in at:
            ours.append((operation, OPTIONAL[kind], address, size))
    kinds = COMPARED | set(OPTIONAL.values())
    return ours, [event for event in cupti if event[1] in kinds and event[0] != "other"]


def numbered(events):
    """Events with allocations by number instead of address, for runs that got different addresses."""
    alive: dict[tuple[str, int], int] = {}
    found: list[tuple] = []
    for operation, kind, address, size in events:
        if operation == "alloc":
            alive[kind, address] = len(found)
            found.append((operation, kind, size))
        else:
            found.append((operation, kind, alive.pop((kind, address), None)))
    return found


def same_process(memlab, cupti):
    """Differences, address by address (threads may interleave different addresses)."""
    ours, theirs = in_common(memlab, cupti)
    by_address: defaultdict[int, tuple[list, list]] = defaultdict(lambda: ([], []))
    for index, events in enumerate((ours, theirs)):
        for operation, kind, address, size in events:
            # CUPTI may not report the size of freed memory.
            by_address[address][index].append((operation, kind, size if operation == "alloc" else None))
    return [
        f"at {address:#x} memlab has {mine}, CUPTI {other}" for address, (mine, other) in by_address.items() if mine != other
    ]


def other_process(memlab, beside, alone):
    """Differences, allocation by allocation. `beside`: events of CUPTI in memlab's own process, whose addresses show which
    of the optional events CUPTI reported; `alone`: events of CUPTI in another process.
    """
    ours, _ = in_common(memlab, beside)
    _, theirs = in_common([], alone)
    ours, theirs = numbered(ours), numbered(theirs)
    if ours == theirs:
        return []
    first = next((i for i, (mine, other) in enumerate(zip(ours, theirs, strict=False)) if mine != other), None)
    if first is None:
        return [f"memlab has {len(ours)} events, CUPTI {len(theirs)}"]
    return [f"event {first}: memlab has {ours[first : first + 3]}, CUPTI {theirs[first : first + 3]}"]


def check_comparison(_harness, folder):
    """Tests the comparison with invented events: equal ones pass, a different one fails."""
    written = folder / "truth.txt"
    written.write_text("cupti 130401\nfree pinned 4096 512 0 9\nalloc pinned 4096 512 0 8\nend 0\n")
    wrong = difference("a file", by_cupti(written), [("alloc", "pinned", 4096, 512), ("free", "pinned", 4096, 512)])
    memlab: list[tuple[str, str, int, int]] = [
        ("alloc", "device", 1, 10),
        ("alloc", "array", 5, 7),
        ("alloc", "registered", 3, 30),
        ("alloc", "pinned", 2, 20),
        ("free", "registered", 3, 30),
        ("free", "device", 1, 10),
    ]
    # Here CUPTI does not report the array, and reports the registered memory as pinned.
    told = [(operation, OPTIONAL.get(kind, kind), at, size) for operation, kind, at, size in memlab if kind != "array"]
    cupti = [*told, ("alloc", "static", 9, 9)]
    moved = [(operation, kind, address + 100, size) for operation, kind, address, size in cupti]
    wrong += same_process(memlab, cupti) + other_process(memlab, cupti, moved)
    for index, (operation, kind, address, _) in enumerate(told):
        less = [*cupti[:index], *cupti[index + 1 :]]
        other = [*cupti[:index], (operation, kind, address, 11), *cupti[index + 1 :]] if operation == "alloc" else less
        for changed in (less, other):
            if not (same_process(memlab, changed) and other_process(memlab, cupti, changed)):
                wrong.append(f"a difference in event {index} went unseen")
    return wrong


def check_truth(harness, folder, program):
    """CUPTI alone, and CUPTI beside memlab, on the same program."""
    if harness.simulated:
        return Skip("CUPTI cannot observe the simulated GPU")
    library, cupti = observer(), libcupti()
    if library is None or cupti is None:
        return Skip("there is no libcupti_truth.so" if library is None else "there is no libcupti")
    if program == "mlp":
        command = [sys.executable, SEE / "exact.py", program, folder / "truth.json"]
    else:
        command = [build_allocations(harness, folder), program]
    env = {"CUPTI_TRUTH_LIBRARY": cupti, "CUDA_INJECTION64_PATH": library}
    found = []
    for memlab, name in ((False, "alone.txt"), (True, "beside.txt")):
        run = harness.run(folder, *command, memlab=memlab, env=env | {"CUPTI_TRUTH_OUTPUT": folder / name})
        if run.code != 0:
            raise Failed(f"{name[:-4]}: exit status {run.code}: {run.errors[-2000:]}")
        found.append(by_cupti(folder / name))
    alone, beside = found
    ours = by_memlab(Trace(run.trace))
    harness.note(
        f"CUPTI on {program}", {"events": len(beside), "memlab": len(ours), "kinds": sorted({e[1] for e in beside})}
    )
    if not any(event[1] in COMPARED for event in beside):
        raise Failed("CUPTI told nothing")
    wrong = [f"in one process: {text}" for text in same_process(ours, beside)]
    return wrong + [f"against a run of its own: {text}" for text in other_process(ours, beside, alone)]
