"""Activations off the real GPU: gradients, and time beside what people use instead."""

import json
import sys

from harness import OWN_PROGRAMS, PROGRAMS, ROOT, Failed

# Widths, layers and tokens: as many as are resident on a card of 80 GB, to compare with.
SHAPES = ((8192, 8, 8192), (4096, 16, 8192), (2048, 16, 16384))


def lines(harness, folder, *arguments):
    env = {"PYTHONPATH": f"{ROOT / 'python'}:{PROGRAMS}"}
    run = harness.run(
        folder,
        sys.executable,
        OWN_PROGRAMS / "offloaded_activations.py",
        *map(str, arguments),
        memlab=False,
        env=env,
        timeout=240,
    )
    if run.code != 0:
        raise Failed(run.errors[-3000:])
    rows = [json.loads(line) for line in run.output.splitlines() if line.startswith("{")]
    harness.note(f"activations {' '.join(map(str, arguments))}", rows)
    return rows


def check_exact(harness, folder):
    """Gradients are the same bits with activations off the GPU, in every stage of what is learnt."""
    if harness.simulated:
        return []  # Its kernels compute nothing.
    return [
        f"{row['case']}: {row}" for row in lines(harness, folder, "exact") if row["plain_twice"] and not all(row["same"])
    ]


def measure_speed(harness, folder):
    """Times of forward and backward, and of one saved tensor: nothing is asserted of them."""
    lines(harness, folder, "pack")
    for shape in SHAPES if not harness.simulated else ((512, 2, 2048),):
        lines(harness, folder, "speed", *shape)
    return []
