"""Activations off the real GPU: gradients, and time beside what people use instead."""

# Widths, layers and tokens: as many as are resident on a card of 80 GB, to compare with.
SHAPES = ((8192, 8, 8192), (4096, 16, 8192), (2048, 16, 16384))


def lines(harness, folder, *arguments):
    return harness.rows(folder, "offloaded_activations.py", *map(str, arguments))


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
