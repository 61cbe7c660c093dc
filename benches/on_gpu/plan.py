"""Plans made without the GPU, against what PyTorch then reserves on it."""

import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor

from harness import MEMLAB, PROGRAMS, Failed

PLANNED, LIBRARIES = PROGRAMS / "planned.py", PROGRAMS / "planned_libraries.py"
BATCHES = [4, 12, 24, 48]
# The arguments of planned.py, and of planned_libraries.py.
MODELS = [
    ("gpt",),
    ("gpt", "--width", "1024", "--context", "1024"),
    ("gpt-amp", "--width", "1024", "--context", "1024"),
    ("gpt-eager", "--width", "512", "--context", "512"),
    ("gpt-recompute", "--width", "1024", "--context", "1024"),
    ("accumulated", "--width", "512", "--context", "512"),
    ("lstm",),
    ("gan",),
    ("hf-gpt2",),
    ("hf-llama",),
    ("hf-vit",),
    ("resnet",),
    ("unet",),
]
# At once, on the card and on the simulated ones.
AT_ONCE = 4
# Shares of what is reserved: the median and the worst of all models that do not use cuDNN.
MEDIAN, WORST = 0.01, 0.03
CUDNN = {"resnet", "unet", "lstm", "hf-vit"}


def program(model, batch):
    return [sys.executable, LIBRARIES if model[0].startswith("hf-") else PLANNED, *model, "--batch", batch]


def planned(harness, folder, model, *options):
    """(allocated, reserved) by batch."""
    batches = ",".join(map(str, BATCHES))
    command = [MEMLAB, "plan", "--json", "--card", "h100", "--predict", batches, *options, "--", *program(model, "{batch}")]
    run = harness.run(folder, *command, memlab=False, simulated="gpu" in options, timeout=180)
    if run.code != 0:
        raise Failed(f"{' '.join(model)}: {run.errors[-1000:]}")
    rows = json.loads(run.output)["batches"]
    return {row["batch"]: (row["peak_allocated_bytes"], row["peak_reserved_bytes"]) for row in rows}


def taken(harness, folder, model, batch):
    run = harness.run(folder, *program(model, batch), memlab=False, timeout=120)
    if run.code != 0:
        raise Failed(f"{' '.join(model)} at batch {batch}: {run.errors[-1000:]}")
    return tuple(json.loads(run.output.splitlines()[-1]))


def check(harness, folder):
    """All models and batches, planned without the GPU."""
    return compared(harness, folder, MODELS)


def check_on_gpu(harness, folder):
    """Planned on the GPU itself: what cuDNN takes is measured then. A language model, and those with cuDNN."""
    models = [MODELS[0], *(model for model in MODELS if model[0] in CUDNN)]
    return compared(harness, folder, models, "--on", "gpu")


def compared(harness, folder, models, *options):
    """A line for each model and batch, then median and worst of what is reserved."""
    cases = [(model, batch) for model in models for batch in BATCHES]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        plans = dict(zip(models, pool.map(lambda model: planned(harness, folder, model, *options), models), strict=True))
        real = list(pool.map(lambda case: taken(harness, folder, *case), cases))
    errors: dict[bool, list[float]] = {False: [], True: []}
    lines = []
    for (model, batch), figures in zip(cases, real, strict=True):
        shares = [plan / figure - 1 for plan, figure in zip(plans[model][batch], figures, strict=True)]
        errors[model[0] in CUDNN].append(abs(shares[1]))
        allocated, reserved = (f"{share:+.2%}" for share in shares)
        name = " ".join(model)
        lines.append(f"{name:44} {batch:3}  allocated {allocated:>8}  reserved {reserved:>8} of {figures[1] >> 20} MiB")
    harness.note("plan", "\n     ".join(lines))
    others, cudnn = errors[False], errors[True]
    text = (
        f"median {statistics.median(others):.2%}, worst {max(others):.2%}; "
        f"with cuDNN: median {statistics.median(cudnn):.2%}, worst {max(cudnn):.2%}"
    )
    harness.note("plan, reserved", text)
    wrong = statistics.median(others) > MEDIAN or max(others) > WORST
    return [text] if wrong else []
