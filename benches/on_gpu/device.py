"""Compares categories with NVIDIA's tools, and checks the position of sequence numbers in autograd's nodes."""

import json
import sys

from harness import OWN_PROGRAMS, Failed, difference

# Between two readings, other parts of the driver may take or free a page.
TOLERANCE = 4 << 20
# Offsets at which memlab looks for the sequence number.
KNOWN_OFFSETS = [16, 24]


def check_categories(harness, folder):
    """Checks that the categories sum to the use that NVIDIA's tools report while no other program runs."""
    run = harness.python(folder, OWN_PROGRAMS / "held.py")
    said = json.loads(run.output)
    report = harness.report(run.trace)
    (used,) = (device["used_bytes"] for device in report["devices"])
    categories = {category["name"]: category["bytes_at_end"] for category in report["categories"]}
    harness.note("used bytes", said | {"memlab": used, "categories": categories})
    total = sum(categories.values())
    wrong = difference("categories", total, used)
    wrong += [f"{name} is negative: {size}" for name, size in categories.items() if size < 0]
    # NVML's first version counts the driver's reserve as used; CUDA and nvidia-smi do not.
    nvml = "nvml_v2" if "nvml_v2" in said else "nvml"
    answers = {tool: said[tool] for tool in (nvml, "smi", "cuda") if tool in said}
    if not answers.keys() - {"cuda"}:
        wrong.append("neither NVML nor nvidia-smi answers")
    for tool, size in answers.items():
        if abs(total - size) > TOLERANCE:
            wrong.append(f"categories sum to {total}, {tool} says {size}: {total - size:+}")
    return wrong


def check_offset(harness, folder):
    """Checks that memlab knows the layout of PyTorch's nodes."""
    run = harness.run(folder, sys.executable, OWN_PROGRAMS / "node_offset.py", memlab=False)
    if run.code != 0:
        raise Failed(run.errors[-2000:])
    found = json.loads(run.output)
    harness.note("sequence number in autograd nodes", found)
    return [] if set(found["offsets"]) & set(KNOWN_OFFSETS) else [f"found at {found['offsets']}, not in {KNOWN_OFFSETS}"]
