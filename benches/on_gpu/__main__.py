"""Runs every check of this folder: see benches/on_gpu.sh."""

import json
import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import activations
import advising
import batches
import compilation
import device
import exact
import fitting
import interception
import offload
import other_arrays
import plan
import speed
import tests_on_card
import truth
from harness import LIBRARY, MEMLAB, Failed, Harness

import paging

# Time limit in seconds, of nine minutes.
SECONDS = 525

FACTS = """
import json, sys, torch
available = torch.cuda.is_available()
print(json.dumps({
    "python": sys.version.split()[0], "torch": torch.__version__, "cuda": torch.version.cuda,
    "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if available else [],
    "memory_gib": torch.cuda.get_device_properties(0).total_memory / 2**30 if available else 0,
}))
"""


def machine(harness):
    """The machine and the versions."""
    run = harness.run(harness.work, sys.executable, "-c", FACTS, memlab=False, devices=2)
    if run.code != 0:
        raise Failed(run.errors[-2000:])
    facts = json.loads(run.output.splitlines()[-1])
    harness.devices = len(facts["devices"])
    facts |= {"system": platform.platform(), "cpus": os.cpu_count()}
    try:
        query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,memory.used", "--format=csv,noheader"]
        facts["nvidia_smi"] = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        facts["nvidia_smi"] = None
    return facts


def together():
    """Runs checks that can run at once, because their figures are of one process."""
    for model in exact.MODELS:
        yield f"exact {model}", exact.check_model, model
    for case in exact.LAYERS:
        yield f"layers {case}", exact.check_layers, case
    for settings in interception.SETTINGS:
        yield f"settings {settings}", interception.check_settings, settings
    for way in interception.WAYS:
        yield f"allocations {way}", interception.check_allocations, way
    for library in other_arrays.LIBRARIES:
        yield f"other arrays {library}", other_arrays.check_library, library
    yield "late loading", interception.check_late
    yield "autograd lines", exact.check_autograd
    yield "autograd offset", device.check_offset
    yield "truth comparison", truth.check_comparison
    for program in truth.PROGRAMS_BY_NAME:
        yield f"truth {program}", truth.check_truth, program
    for file in tests_on_card.CHOSEN:
        yield f"tests {file}", tests_on_card.check_file, file


def alone():
    """Runs checks that need the whole GPU, or an idle machine."""
    yield "batch exact", batches.check_exact
    yield "batch zoo", batches.check_zoo
    yield "batch mixing", batches.check_mixing
    yield "batch budgets", batches.check_budgets
    yield "batchnorm exact", batches.check_batchnorm
    yield "batchnorm speed", batches.measure_batchnorm
    yield "batch memory", batches.check_memory
    yield "batch speed", batches.measure_speed
    yield "activations exact", activations.check_exact
    yield "activations pack", activations.measure_pack
    yield "activations speed", activations.measure_speed
    for mode in compilation.MODES:
        yield f"compiled {mode}", compilation.check_mode, mode
    yield "compiled speed", compilation.measure_speed
    yield "plan", plan.check
    yield "advice", advising.check
    yield "spill", fitting.check_spilling
    yield "fit loss", fitting.check_loss
    for case in fitting.CASES:
        yield f"fit {case}", fitting.check_case, case
    yield "plan on gpu", plan.check_on_gpu
    yield "categories", device.check_categories
    for budget in paging.BUDGETS:
        yield f"paging zoo {budget}", paging.check_zoo, budget
    yield "paging ways", paging.check_ways
    yield "chunked", paging.check_chunked
    yield "paging shared", paging.check_shared
    yield "paging devices", paging.check_devices
    yield "paging devices speed", paging.measure_devices
    for way in offload.WAYS:
        yield f"moving {way}", offload.check_cycles, way
    yield "moving parts", offload.check_parts
    yield "moving card", offload.check_card
    yield "moving commands", offload.check_commands
    yield "moving limit", offload.check_limit
    yield "moving pressure", offload.check_pressure
    yield "moving speed", offload.check_speed
    yield "speed step", speed.check_step
    for bound in speed.TIMED_PERCENT:
        yield f"time {bound}", speed.check_timed_step, bound
    yield "speed append", speed.check_append
    yield "speed overhead", speed.check_overhead


def main():
    wanted = sys.argv[1:]
    for needed in (MEMLAB, LIBRARY):
        if not needed.exists():
            sys.exit(f"on_gpu: {needed} is missing: cargo build --release --workspace makes it")
    harness = Harness(os.environ.get("OUT") or "on_gpu_results", SECONDS)
    try:
        facts = harness.machine = machine(harness)
    except (Failed, subprocess.TimeoutExpired) as failed:
        harness.close()
        sys.exit(f"on_gpu: cannot even ask PyTorch for its devices: {failed}")
    if not facts["devices"]:
        harness.close()
        sys.exit("on_gpu: PyTorch finds no GPU here.\nTo try the script itself: SIMGPU=simgpu/simgpu benches/on_gpu.sh")
    harness.log(json.dumps(facts, indent=1))

    known = {check[0] for checks in (together(), alone()) for check in checks}

    def chosen(checks):
        # A complete name matches only itself: "plan" does not select "plan on gpu", which takes as long again.
        def is_meant(name):
            return any(name == word if word in known else name.startswith(word) for word in wanted)

        return [check for check in checks if not wanted or is_meant(check[0])]

    with ThreadPoolExecutor(max(1, min(4, (os.cpu_count() or 2) // 2 + 1))) as pool:
        for check in chosen(together()):
            pool.submit(harness.guard, *check)
    for check in chosen(alone()):
        harness.guard(*check)
    sys.exit(not harness.finish())


main()
