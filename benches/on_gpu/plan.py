"""Compares plans made without the GPU with PyTorch's reserved memory on it."""

import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor

from harness import KNOW, MEMLAB, Failed

PLANNED, LIBRARIES = KNOW / "planned.py", KNOW / "planned_libraries.py"
BATCHES = [4, 12, 24, 48]
# Arguments of planned.py, and of planned_libraries.py.
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
# Concurrent programs on the card, and on the simulated ones.
AT_ONCE = 4
# Maximum relative errors of reserved memory for models without cuDNN: the median, and the worst.
MEDIAN, WORST = 0.01, 0.03
CUDNN = {"resnet", "unet", "lstm", "hf-vit"}


def program(model, batch):
    return [sys.executable, LIBRARIES if model[0].startswith("hf-") else PLANNED, *model, "--batch", batch]


def planned(harness, folder, model, *options):
    """(allocated, reserved, predicted range of reserved) by batch."""
    batches = ",".join(map(str, BATCHES))
    command = [MEMLAB, "plan", "--json", "--card", "h100", "--predict", batches, *options, "--", *program(model, "{batch}")]
    run = harness.run(folder, *command, memlab=False, simulated="gpu" in options, timeout=180)
    if run.code != 0:
        raise Failed(f"{' '.join(model)}: {run.errors[-1000:]}")
    rows = json.loads(run.output)["batches"]
    keys = ("peak_allocated_bytes", "peak_reserved_bytes", "peak_reserved_range_bytes")
    return {row["batch"]: [row[key] for key in keys] for row in rows}


def taken(harness, folder, model, batch):
    run = harness.run(folder, *program(model, batch), memlab=False, timeout=120)
    if run.code != 0:
        raise Failed(f"{' '.join(model)} at batch {batch}: {run.errors[-1000:]}")
    return tuple(json.loads(run.output.splitlines()[-1]))


def check(harness, folder):
    """Plans all models and batches without the GPU."""
    return compared(harness, folder, MODELS)


def check_on_gpu(harness, folder):
    """Plans on the GPU itself, where cuDNN's memory is measured: a language model, and those with cuDNN."""
    models = [MODELS[0], *(model for model in MODELS if model[0] in CUDNN)]
    return compared(harness, folder, models, "--on", "gpu")


def compared(harness, folder, models, *options):
    """A line for each model and batch, then median and worst error of reserved memory."""
    cases = [(model, batch) for model in models for batch in BATCHES]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        plans = dict(zip(models, pool.map(lambda model: planned(harness, folder, model, *options), models), strict=True))
        real = list(pool.map(lambda case: taken(harness, folder, *case), cases))
    errors: dict[bool, list[float]] = {False: [], True: []}
    beyond: dict[bool, list[float]] = {False: [], True: []}
    lines = []
    for (model, batch), figures in zip(cases, real, strict=True):
        *plan, (least, most) = plans[model][batch]
        shares = [planned / figure - 1 for planned, figure in zip(plan, figures, strict=True)]
        uses_cudnn = model[0] in CUDNN
        errors[uses_cudnn].append(abs(shares[1]))
        beyond[uses_cudnn].append(max(least - figures[1], figures[1] - most, 0) / figures[1])
        allocated, reserved = (f"{share:+.2%}" for share in shares)
        name = " ".join(model)
        between = f", said {least >> 20} to {most >> 20}" if least < most else ""
        lines.append(
            f"{name:44} {batch:3}  allocated {allocated:>8}  reserved {reserved:>8} of {figures[1] >> 20} MiB{between}"
        )
    harness.note("plan", "\n     ".join(lines))

    def said(uses_cudnn):
        all_of = errors[uses_cudnn]
        outside = max(beyond[uses_cudnn])
        return f"median {statistics.median(all_of):.2%}, worst {max(all_of):.2%}, outside of the range at most {outside:.2%}"

    text = f"{said(False)}; with cuDNN: {said(True)}"
    harness.note("plan, reserved", text)
    wrong = statistics.median(errors[False]) > MEDIAN or max(errors[False]) > WORST
    return [text] if wrong else []
