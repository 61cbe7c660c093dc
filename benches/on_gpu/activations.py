"""Activations off the real GPU: gradients, and time beside what people use instead."""

# Widths, layers and tokens: as many as are resident on a card of 80 GB, to compare with.
SHAPES = ((8192, 8, 8192), (4096, 16, 8192), (2048, 16, 16384))


def lines(harness, folder, *arguments, program="offloaded_activations.py"):
    return harness.rows(folder, program, *map(str, arguments))


def check_exact(harness, folder):
    """Gradients are the same bits with activations off the GPU, in every stage of what is learnt."""
    if harness.simulated:
        return []  # Its kernels compute nothing.
    return [
        f"{row['case']}: {row}" for row in lines(harness, folder, "exact") if row["plain_twice"] and not all(row["same"])
    ]


def measure_speed(harness, folder):
    """Times of forward and backward: nothing is asserted of them."""
    for shape in SHAPES if not harness.simulated else ((512, 2, 2048),):
        lines(harness, folder, "speed", *shape)
    return []


def measure_pack(harness, folder):
    """Times on the host of a saved tensor, and of an operation that saves one: nothing is asserted of them."""
    lines(harness, folder, "pack")
    lines(harness, folder, *((2048, 8, 8192) if not harness.simulated else (512, 8, 2048)), program="packing.py")
    return []
