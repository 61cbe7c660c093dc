"""Activations off the real GPU: gradients, and time compared with common tools."""

# Widths, layers and tokens: the most that are resident on a card of 80 GB, for comparison.
SHAPES = ((8192, 8, 8192), (4096, 16, 8192), (2048, 16, 16384))


def lines(harness, folder, *arguments, program="offloaded_activations.py"):
    return harness.rows(folder, program, *map(str, arguments))


def check_exact(harness, folder):
    """Checks that gradients are bit-identical with activations off the GPU, while the schedule is learned and after."""
    if harness.simulated:
        return []  # The simulated GPU's kernels compute nothing.
    return [
        f"{row['case']}: {row}" for row in lines(harness, folder, "exact") if row["plain_twice"] and not all(row["same"])
    ]


def measure_speed(harness, folder):
    """Measures times of forward and backward, without asserting."""
    for shape in SHAPES if not harness.simulated else ((512, 2, 2048),):
        lines(harness, folder, "speed", *shape)
    return []


def measure_pack(harness, folder):
    """Measures host times of a saved tensor, and of an operation that saves one, without asserting."""
    lines(harness, folder, "pack")
    lines(harness, folder, *((2048, 8, 8192) if not harness.simulated else (512, 8, 2048)), program="packing.py")
    return []
