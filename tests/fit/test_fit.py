"""`memlab run --fit`: an unmodified program in less memory, on a simulated card."""

import json
import re
from pathlib import Path

import pytest
from conftest import PYTHON

PROGRAM = Path(__file__).parent / "programs" / "trained.py"
MIB = 1 << 20


def run(memlab, case, *options):
    """Runs a case; returns its figures or None, memlab's messages and its exit code."""
    trace = memlab.folder / "run.jsonl"
    command = [memlab.command, "run", *options, "--force", "-o", trace, "--", PYTHON, PROGRAM, case]
    done = memlab.run(*command, preload=False, memory="16GiB", fresh=True)
    figures = [json.loads(line) for line in done.output.splitlines() if line.startswith("{")]
    return figures[0] if figures else None, done.errors, done.code


def recomputed(messages):
    return int(re.search(r"(\d+) of 8 modules checkpointed", messages)[1])


def test_a_program_fits_into_less_memory(memlab):
    # GIVEN the footprint of a program, which fits as it is
    plain, messages, code = run(memlab, "plain", "--fit", "12GiB")
    assert code == 0 and "which fits. Starting it" in messages, messages
    context = plain["used"] - plain["reserved"]
    counts = []
    for share in (0.8, 0.6):
        # WHEN it must fit into less
        target = int((plain["reserved"] + context) * share) // MIB
        fitted, messages, code = run(memlab, "plain", "--fit", f"{target}MiB")
        # THEN it runs, takes no more than that, AND the message has the changes
        assert code == 0 and "Fits in" in messages, messages
        assert "expandable segments, early gradients" in messages, messages
        assert fitted["reserved"] + context <= target * MIB
        counts.append(recomputed(messages))
    # AND less memory takes more modules
    assert 0 < counts[0] < counts[1] <= 8
    # AND what cannot fit is not started
    figures, messages, code = run(memlab, "plain", "--fit", "1200MiB")
    assert (figures, code) == (None, 2)
    assert "does not fit in 1.17 GiB" in messages and "misses by" in messages and "A batch 0." in messages, messages


@pytest.mark.parametrize("case", ["changed", "read"])
def test_changes_that_would_alter_the_program_are_left_out(memlab, case):
    # GIVEN a program that changes an argument of a block before backward, or reads gradients after the step
    plain, _, _ = run(memlab, case, "--fit", "12GiB")
    target = int(plain["used"] * 0.6) // MIB
    fitted, messages, code = run(memlab, case, "--fit", f"{target}MiB")
    # THEN it runs without that change, and still fits
    assert code == 0, messages
    assert fitted["reserved"] + plain["used"] - plain["reserved"] <= target * MIB
    if case == "changed":
        assert "activations of blocks.4 cannot be recomputed" in messages
    else:
        assert "early gradients" not in messages


def test_a_large_loss_and_the_optimizer_s_state_take_less(memlab):
    # GIVEN a program with a large cross entropy; WHEN it must fit into less than its modules alone give
    target = 2300
    fitted, messages, code = run(memlab, "language", "--fit", f"{target}MiB")
    # THEN the loss is computed in rows, AND a part of the state is on the host
    assert code == 0, messages
    assert "the loss in rows and 8 of 8 modules" in messages, messages
    assert "MiB of optimizer state on the host between steps" in messages, messages
    assert fitted["used"] <= target * MIB
    # AND without these changes, it does not fit
    for change in ("loss", "state"):
        _, messages, code = run(memlab, "language", "--fit", f"{target}MiB", "--fit-without", change)
        assert code == 2 and "misses by" in messages, messages


def test_a_module_can_be_left_out(memlab):
    plain, _, _ = run(memlab, "plain", "--fit", "12GiB")
    target = int(plain["used"] * 0.8) // MIB
    without = [f"--fit-without=blocks.{number}" for number in (5, 6, 7)]
    _, messages, code = run(memlab, "plain", "--fit", f"{target}MiB", *without)
    assert code == 0 and "blocks.4)" in messages and "blocks.5" not in messages, messages
