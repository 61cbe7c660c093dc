"""Micro-batches on the real GPU: gradients, memory, speed."""

from harness import TESTS

# Maximum distance of micro-batches from the gradients in float64, as a multiple of that of the whole batch in float32.
FARTHER = 2.0
# Maximum relative distance between gradients in float64.
ROUNDING = 1e-12
# Minimum share of the permitted memory that micro-batches use.
USED = 0.5


def lines(harness, folder, what, program="pieces.py"):
    return harness.rows(folder, program, what)


def check_exact(harness, folder):
    """Checks that gradients of micro-batches are as near to those in float64 as the whole batch's."""
    if harness.simulated:
        return []  # The simulated GPU's kernels compute nothing.
    return [
        f"{row['case']}: {row}"
        for row in lines(harness, folder, "exact")
        if not max(row["pieces"].values()) <= FARTHER * max(row["whole"])
    ]


def check_batchnorm(harness, folder):
    """Checks BatchNorm in training, at once and in lockstep: in float64 to rounding, in float32 within its spread."""
    if harness.simulated:
        return []
    rows = lines(harness, folder, "exact", "lockstep.py")
    return [str(row) for row in rows if not row.get("is_within", row["gradients"] <= ROUNDING)]


def check_zoo(harness, folder):
    """Checks each criterion and models of many kinds, in each way: within the spread of float32."""
    if harness.simulated:
        return []
    return [f"{row['zoo']}, {row['way']}: {row}" for row in harness.rows(folder, "batch_zoo.py") if row["beyond"]]


def check_mixing(harness, folder):
    """Checks that models whose samples interact are refused, and others are not, also where kernels compute in TF32."""
    if harness.simulated:
        return []
    return [str(row) for row in harness.rows(folder, "mixing.py") if row["wrong"]]


def check_budgets(harness, folder):
    """Checks that micro-batches keep within `memory=`, also with a loss of all samples."""
    wrong = []
    for case in ("pieces", "replay"):
        for row in harness.rows(folder, str(TESTS / "batches" / "programs" / "budgets.py"), case):
            if row["ooms"] or not USED * row["allowed"] <= row["most"] <= row["allowed"]:
                wrong.append(str(row))
    return wrong


def check_memory(harness, folder):
    """Checks that micro-batches are as large as fit, and that none runs out of memory."""
    wrong = []
    for row in lines(harness, folder, "memory"):
        limit = 4 << 30 if row["limit"] == "4GiB" else row["free"]
        if row["ooms"] or not USED * limit <= row["allocated"] <= limit:
            wrong.append(str(row))
    return wrong


def measure_batchnorm(harness, folder):
    """Measures times of batches with BatchNorm, without asserting."""
    if not harness.simulated:
        lines(harness, folder, "speed", "lockstep.py")
    return []


def measure_speed(harness, folder):
    """Measures times of a batch in micro-batches, without asserting."""
    lines(harness, folder, "speed")
    lines(harness, folder, "pictures")
    return []
