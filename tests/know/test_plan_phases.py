"""`memlab plan` of training that evaluates and saves: the same two small recordings predict these phases."""

import importlib.util
import sys
import types
import weakref
from pathlib import Path

import pytest
from conftest import ROOT, full
from test_plan import planned

PROGRAMS = Path(__file__).parent / "programs"

PHASES = PROGRAMS / "planned_phases.py"
# 48 is recorded as well, being the largest; 20 is not.
PREDICTED = [20, 48]


def peaks(memlab, *programs):
    """Peaks of PyTorch's counters after a plain run of each program, by phase and overall."""
    return memlab.each(*programs, simgpu=("--card", "h100"), memory="80GiB")


def compared(memlab, *program):
    """Planned and actual peaks, allocated and reserved, at several batches, two of them recorded."""
    answer = planned(memlab, "--predict", ",".join(map(str, PREDICTED)), program=(PHASES, *program, "--batch", "{batch}"))
    rows = [[row["peak_allocated_bytes"], row["peak_reserved_bytes"]] for row in answer["batches"]]
    return answer, rows, peaks(memlab, *((PHASES, *program, "--batch", batch) for batch in PREDICTED))


@pytest.mark.long
@pytest.mark.parametrize(
    "program",
    [[], ["--workers", "1"], ["--saving", "async"], *full(["--evaluated", "16"], ["--saving", "distributed"])],
    ids=["larger", "workers", "async", "smaller", "distributed"],
)
def test_evaluation_and_saving_of_a_plain_loop_are_planned_to_the_byte(memlab, program):
    """GIVEN three epochs, each with an evaluation in larger or smaller batches and a checkpoint, planned from batch 8 and 16
    WHEN they run at other batches
    THEN PyTorch's peaks of the whole run are the planned ones."""
    answer, rows, runs = compared(memlab, "epochs", *program)
    assert rows == [run["whole"] for run in runs]
    assert {row["name"] for row in answer["phases"]} >= {"training", "evaluation", "saving"}


@pytest.mark.long
@pytest.mark.parametrize(
    "program", [["--evaluated", "16"], *full([], ["--steps", "40"])], ids=["smaller", "larger", "seldom"]
)
def test_an_evaluation_without_a_data_loader_is_planned_to_the_byte(memlab, program):
    """GIVEN a loop that builds its own batches and evaluates every few steps
    WHEN it is planned from batch 8 and 16, and runs at other batches
    THEN evaluation is a phase, and PyTorch's peaks of each phase and of the whole run are the planned ones."""
    answer, rows, runs = compared(memlab, "steps", *program)
    assert rows == [run["whole"] for run in runs]
    assert {row["name"] for row in answer["phases"]} == {"training", "evaluation"}


@pytest.mark.long
@pytest.mark.parametrize(
    "program", [["--steps", "30"], *full([], ["--evaluated", "16"])], ids=["seldom", "larger", "smaller"]
)
def test_an_evaluation_within_an_epoch_is_planned_to_the_byte(memlab, program):
    """GIVEN a loop over a DataLoader that evaluates every few steps, and saves after each epoch
    WHEN it is planned from batch 8 and 16, and runs at other batches
    THEN both are phases, and PyTorch's peaks of each and of the whole run are the planned ones."""
    answer, rows, runs = compared(memlab, "within", *program)
    assert rows == [run["whole"] for run in runs]
    assert {row["name"] for row in answer["phases"]} >= {"training", "evaluation", "saving"}


def test_an_evaluation_between_two_epochs_is_a_phase(memlab):
    """GIVEN a loop without work between an evaluation and the next epoch
    WHEN it is planned
    THEN the evaluation's memory belongs to its own phase, and not to training."""
    program = (PHASES, "epochs", "--batch", "20", "--saving", "none")
    answer = planned(memlab, program=program)
    (run,) = peaks(memlab, program)
    assert {row["name"]: row["peak_allocated_bytes"] for row in answer["phases"]} == {
        phase: run[phase][0] for phase in ("training", "evaluation")
    }


def test_each_phase_has_its_own_peak(memlab):
    """GIVEN training with a larger evaluation, without a batch option
    WHEN it is planned
    THEN the peak of each phase is PyTorch's, and the plan advises a smaller evaluation."""
    program = (PHASES, "epochs", "--batch", "20")
    answer = planned(memlab, program=program)
    (run,) = peaks(memlab, program)
    phases = {row["name"]: row["peak_allocated_bytes"] for row in answer["phases"]}
    assert phases["training"] < phases["evaluation"] == run["evaluation"][0]
    assert (phases["training"], phases["saving"]) == (run["training"][0], run["saving"][0])
    assert answer["peak"]["phase"] == "evaluation"
    assert any(advice.startswith("evaluation needs") for advice in answer["advice"])


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["epoch", *full("steps")])
def test_the_trainer_evaluates_and_saves_at_the_end_of_the_short_epoch(memlab, strategy):
    """GIVEN Hugging Face's Trainer, which evaluates and saves after each epoch or every few steps
    WHEN it is planned
    THEN the peaks are those of the run, except for the losses that it keeps: a number for each evaluated sample."""
    _, rows, runs = compared(memlab, "trainer", "--strategy", strategy)
    assert rows == [[pytest.approx(run["whole"][0], rel=1e-4), run["whole"][1]] for run in runs]


def test_failures_after_the_steps_are_noted(memlab):
    """GIVEN a program that divides by a value that is 0 on a simulated card, after its first evaluation
    WHEN it is planned
    THEN its training and the evaluation are planned, and the plan reports the failure."""
    answer = planned(memlab, program=(PHASES, "epochs", "--batch", "8", "--fails"))
    assert [row["name"] for row in answer["phases"]] == ["training", "evaluation"]
    assert any("the program failed" in warning for warning in answer["warnings"])


@pytest.mark.parametrize("saving", ["distributed", "async", "async-process"])
def test_distributed_checkpoints_are_left_alone(memlab, saving):
    """GIVEN a distributed checkpoint where the program saves its own, also from threads and from another process
    WHEN it is planned
    THEN the checkpoint is unchanged, and saving has not failed."""
    (memlab.folder / "model").mkdir()
    (memlab.folder / "model" / "__0_0.distcp").write_text("weeks of work")
    answer = planned(memlab, program=(PHASES, "epochs", "--batch", "8", "--saving", saving, "--checkpoint", "model"))
    assert "saving" in {row["name"] for row in answer["phases"]}
    assert not any("failed" in warning for warning in answer["warnings"])
    left = [path for path in memlab.folder.rglob("*") if path.is_file()]
    assert [(path.name, path.read_text()) for path in left] == [("__0_0.distcp", "weeks of work")]


@pytest.mark.long
def test_checkpoints_of_a_real_training_are_left_alone(memlab):
    """GIVEN a checkpoint and a log where the program writes its own
    WHEN it is planned, with a plain loop and with the Trainer
    THEN they are unchanged, and no others appear."""
    (memlab.folder / "model").write_text("weeks of work")
    (memlab.folder / "model.txt").write_text("epoch 90")
    (memlab.folder / "run" / "checkpoint-3").mkdir(parents=True)
    (memlab.folder / "run" / "checkpoint-3" / "model.safetensors").write_text("weeks of work")
    planned(memlab, program=(PHASES, "epochs", "--batch", "8", "--checkpoint", "model"))
    planned(memlab, program=(PHASES, "trainer", "--batch", "8", "--checkpoint", "run"))
    left = sorted(str(path.relative_to(memlab.folder)) for path in memlab.folder.rglob("*") if path.is_file())
    assert left == ["model", "model.txt", "run/checkpoint-3/model.safetensors"]
    assert (memlab.folder / "model").read_text() == "weeks of work"


def test_only_the_training_is_planned_on_request(memlab):
    """GIVEN --training-only
    WHEN training with evaluations is planned
    THEN the plan has one phase, and no figure includes the evaluation."""
    answer = planned(memlab, "--training-only", program=(PHASES, "epochs", "--batch", "8"))
    (phase,) = answer["phases"]
    assert phase["name"] == "training"
    assert phase["peak_allocated_bytes"] == answer["batches"][0]["peak_allocated_bytes"]


class Loop:
    """Training whose loop calls a method that evaluates."""

    def __init__(self, phases):
        self.phases = phases

    def eval(self):
        pass

    def check(self):
        self.eval()

    def run(self):
        found, alive = [], []
        for _ in range(2):
            batch, closed = Loop(None), Loop(None)
            known = weakref.WeakSet([batch, closed])

            def shared():
                return closed  # noqa: B023

            found.append(self.phases.evaluates_in_its_loop(sys._getframe()))
            del batch, shared
            closed = None
            alive.append(len(known))
            self.check()
        return found, alive

    def with_its_variables(self):
        for _ in range(1):
            held = locals()
            found = self.phases.evaluates_in_its_loop(sys._getframe())
            self.check()
        return found, held["self"]


def test_looking_at_a_loop_keeps_nothing_of_it(monkeypatch):
    # GIVEN the code that looks for an evaluation in the loop of a program
    monkeypatch.setitem(sys.modules, "_memlab_outside", types.ModuleType("_memlab_outside"))
    spec = importlib.util.spec_from_file_location(
        "_memlab_phases", ROOT / "viewer" / "cli" / "src" / "recording" / "phases.py"
    )
    phases = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(phases)
    loop = Loop(phases)
    # WHEN the loop evaluates in a separate method THEN it finds the evaluation, AND objects that the loop deletes are freed
    assert loop.run() == ([True, True], [0, 0])
    # AND a program's own dictionary of its variables is unchanged
    assert loop.with_its_variables() == (True, loop)
