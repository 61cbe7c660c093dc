"""`memlab plan` of training with PyTorch Lightning: it evaluates and saves after the recorded steps, and writes nothing."""

from pathlib import Path

import pytest
from conftest import full
from test_plan import planned
from test_plan_phases import peaks

PROGRAMS = Path(__file__).parent / "programs"

pytest.importorskip("lightning")

LIGHTNING = PROGRAMS / "planned_lightning.py"
# 48 is recorded as well, being the largest; 20 is not.
PREDICTED = [20, 48]
ACCUMULATED = ("--precision", "bf16-mixed", "--accumulate", "2", "--clip", "1.0", "--evaluated-every", "4")


@pytest.mark.long
@pytest.mark.parametrize("options", [ACCUMULATED, *full([], ["--saved-every", "7"])], ids=["accumulated", "epochs", "saved"])
def test_lightning_is_planned_to_the_byte(memlab, options):
    """GIVEN three epochs of a LightningModule, with evaluations at their end or within them, planned from batch 8 and 16
    WHEN they run at other batches
    THEN PyTorch's peaks of the whole run are the planned ones."""
    batches = ",".join(map(str, PREDICTED))
    answer = planned(memlab, "--predict", batches, program=(LIGHTNING, "gpt", *options, "--batch", "{batch}"))
    runs = peaks(memlab, *((LIGHTNING, "gpt", *options, "--batch", batch) for batch in PREDICTED))
    rows = [[row["peak_allocated_bytes"], row["peak_reserved_bytes"]] for row in answer["batches"]]
    assert rows == [run["whole"] for run in runs]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gpt", "cnn"])
def test_each_phase_of_lightning_has_its_own_peak(memlab, kind):
    """GIVEN a LightningModule, without a batch option
    WHEN it is planned
    THEN the peaks of training and evaluation are PyTorch's, except for a metric of the previous evaluation, which is still
    alive in the next epoch; and no step keeps more than the previous one."""
    program = (LIGHTNING, kind, "--batch", "20")
    answer = planned(memlab, program=program)
    (run,) = peaks(memlab, program)
    phases = {row["name"]: row["peak_allocated_bytes"] for row in answer["phases"]}
    assert phases["training"] == pytest.approx(run["training"][0], abs=512)
    assert phases["evaluation"] == run["evaluation"][0]
    assert "saving" in phases
    assert not any("keeps" in warning or "failed" in warning for warning in answer["warnings"])


@pytest.mark.long
@pytest.mark.parametrize("arguments", [(), ("--training-only",)], ids=["phases", "training-only"])
def test_checkpoints_and_logs_of_lightning_are_left_alone(memlab, arguments):
    """GIVEN checkpoints and logs of a real training run where the program writes its own, often
    WHEN it is planned
    THEN they are unchanged, and no others appear."""
    kept = ["checkpoints/last.ckpt", "lightning_logs/version_0/metrics.csv"]
    for name in kept:
        path = memlab.folder / "run" / name
        path.parent.mkdir(parents=True)
        path.write_text("weeks of work")
    planned(memlab, *arguments, program=(LIGHTNING, "gpt", "--batch", "8", "--saved-every", "2", "--folder", "run"))
    left = [path for path in (memlab.folder / "run").rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(memlab.folder / "run")) for path in left) == kept
    assert {path.read_text() for path in left} == {"weeks of work"}
