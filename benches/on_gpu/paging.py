"""Pages models on the real GPU: the zoo, and the ways to run a paged model."""

import json
import sys

from harness import PROGRAMS, ROOT, Failed

WAYS = ["graph", "threads", "compiled", "frozen", "trained", "chunked", "share"]
BUDGETS = ["min", "3MiB"]


def paged(harness, folder, *arguments):
    """The output of tests/programs/paged.py, one line a model."""
    real = [] if harness.simulated else ["--real"]
    env = {"PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'tests'}"}
    run = harness.run(folder, sys.executable, PROGRAMS / "paged.py", *real, *arguments, memlab=False, env=env, timeout=200)
    if run.code != 0:
        raise Failed(run.errors[-3000:])
    return [json.loads(line) for line in run.output.splitlines() if line.startswith("{")]


def check_zoo(harness, folder, budget):
    """Checks every unit's bytes whenever it is used, results against the unpaged model, and the state."""
    names = ["resnet101", "vit", "attention", "direct-use", "tied", "shared", "recurrent", "mixed", "writing", "encoder"]
    names += ["names", "bf16", "gpt2", "llama", "t5"]
    fitting = names if budget == "min" else ["resnet101", "vit", "llama", "gpt2"]
    found = paged(harness, folder, *fitting, "--budget", budget)
    harness.note("paged", found)
    return [
        f"{one['model']}: {one}"
        for one in found
        if not (one["state"] and one["pinned"] and one["stage"] == "settled" and one["equal"])
    ]


def check_ways(harness, folder):
    """A CUDA graph, threads, torch.compile, gradients through frozen weights, and chunk."""
    found = paged(harness, folder, *WAYS)
    harness.note("ways", found)
    return [f"{one['model']}: {one}" for one in found if not one["equal"] and not harness.simulated]
