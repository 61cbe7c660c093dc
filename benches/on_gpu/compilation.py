"""Programs with torch.compile on the real GPU: lines, layers and categories, and memlab's overhead."""

import json
import statistics

from harness import OWN_PROGRAMS, Failed, difference

MODES = ["default", "reduce-overhead", "max-autotune"]
UNKNOWN = "(compiled code, unknown line)"
# Minimum share of the activations at the peak with a line of the program and a layer inside the outermost.
KNOWN = 0.99
# Maximum difference of losses between runs: six times the largest on an H200.
ROUNDING = 2e-5
# Figures of a layer that must equal those of the same program without torch.compile.
SAME = ("parameter_bytes", "gradient_bytes", "optimizer_state_bytes", "buffer_bytes")


def run(harness, folder, mode, cache, memlab=True, layers=4):
    folder = folder / f"{mode}-{cache}-{memlab}"
    folder.mkdir(exist_ok=True)
    env = {"TORCHINDUCTOR_CACHE_DIR": folder.parent / cache}
    program = (OWN_PROGRAMS / "compiled_gpt.py", mode, layers)
    # max-autotune tries several hundred kernels, which takes more than five minutes.
    seconds = min(500, harness.left())
    return harness.python(folder, *program, memlab=memlab, env=env, timeout=seconds, quiet=memlab)


def results(run):
    result, times = (json.loads(line) for line in run.output.splitlines()[-2:])
    return result["result"], times


def held_by_layer(report):
    return {row["name"]: [row[key] for key in SAME] for row in report["layers"] if row["root"]}


def check_mode(harness, folder, mode):
    """Checks that layers hold the same as without torch.compile, lines and layers are known, and results are equal."""
    # Compiling for max-autotune takes so long that it is done once, for a small model: code compiled with memlab runs
    # without it too. In other modes, runs without memlab have a separate cache.
    slow = mode == "max-autotune"
    depth = 1 if slow else 4
    eager = harness.report(run(harness, folder, "eager", "none", layers=depth).trace)
    first = run(harness, folder, mode, "seen", layers=depth)
    alone = run(harness, folder, mode, "seen" if slow else "plain", memlab=False, layers=depth)
    wrong = []
    for cache in ("cold", "warm"):  # The second time, everything is cached.
        recorded = first if cache == "cold" else run(harness, folder, mode, "seen", layers=depth)
        # Each process measures anew which kernels are the fastest, and they round differently.
        pairs = zip(results(recorded)[0], results(alone)[0], strict=True)
        if not harness.simulated and any(abs(one - other) > ROUNDING * abs(other) for one, other in pairs):
            wrong.append(f"{cache}: losses are {results(recorded)[0]} instead of {results(alone)[0]}")
        report = harness.report(recorded.trace)
        held = held_by_layer(report)
        for name, bytes_held in held_by_layer(eager).items():
            if any(bytes_held):
                wrong += difference(f"{cache}: layer {name}: {SAME}", held.get(name), bytes_held)
        layers = [(row["root"] and row["name"], row["activation_bytes"]) for row in report["layers"]]
        inside, everywhere = (sum(size for name, size in layers if name or not part) for part in (True, False))
        unknown = sum(row["live_bytes_at_peak"] for row in report["lines"] if row["file"] == UNKNOWN)
        activations = next(row["bytes_at_peak"] for row in report["categories"] if row["name"] == "activation")
        facts = {"activations": activations, "share in layers": inside / everywhere, "unknown lines": unknown}
        harness.note(f"{mode}, {cache}", facts)
        if inside < KNOWN * everywhere or unknown > (1 - KNOWN) * activations:
            wrong.append(f"{cache}: {facts}")
        recorded.trace.unlink()
    return wrong


def measure_speed(harness, folder):
    """Measures compilation (the first two steps) and a step, alternately with memlab and without, without asserting."""
    turns = 1 if harness.simulated else 3
    for cache in ("cold", "warm"):
        found: dict[bool, list[dict]] = {True: [], False: []}
        for turn in range(turns):
            for memlab in (False, True):
                name = f"{cache}-{turn}-{memlab}" if cache == "cold" else "cold-0-False"
                try:
                    found[memlab].append(results(run(harness, folder, "default", name, memlab))[1])
                finally:
                    for trace in folder.rglob("*.jsonl"):
                        trace.unlink()
        medians = {
            key: [statistics.median(times[key] for times in found[memlab]) for memlab in (False, True)]
            for key in ("first", "step")
        }
        if not all(min(values) > 0 for values in medians.values()):
            raise Failed(str(found))
        harness.note(f"compiled, {cache}: seconds without and with memlab", medians)
    return []
