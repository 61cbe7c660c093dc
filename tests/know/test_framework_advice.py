"""Advice in the terms of the framework whose loop trains: Hugging Face's Trainer, Lightning and Accelerate."""

import json
import re
import subprocess
from pathlib import Path

import pytest
from conftest import PYTHON
from test_advice import advise, of_kind

PROGRAM = Path(__file__).parent / "programs" / "framed.py"
TERMS = re.compile(r"TrainingArguments|per_device|Trainer|Lightning|accelerat|Accelerat|gradient_accumulation")

for package in ("transformers", "lightning", "accelerate"):
    pytest.importorskip(package)


def peak(memlab, kind, settings, advice=""):
    done = memlab.run(PYTHON, PROGRAM, kind, repr(settings), preload=False, env={"ADVICE": advice})
    assert done.code == 0, done.errors
    return int(done.output.splitlines()[-1])


def text_of(memlab, command, trace):
    command = [memlab.command, *(["report", "--full"] if command == "report" else [command]), str(trace)]
    done = subprocess.run(command, capture_output=True, text=True, env=memlab.environment())
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def test_the_trainer_checkpoints_with_its_argument(memlab):
    # GIVEN a Trainer without checkpointing
    done = memlab.python(PROGRAM, "trainer", fresh=True)
    assert done.code == 0, done.errors
    # WHEN memlab advises on it; THEN the code sets the Trainer's argument, AND the batch has its name
    answer = advise(memlab, done.trace)
    advice = of_kind(answer, "checkpoint")
    assert "TrainingArguments(gradient_checkpointing=True)" in advice["how"]
    assert "per_device_train_batch_size 16 times" in text_of(memlab, "advise", done.trace)
    # AND with the argument, the peak is the predicted one
    after = peak(memlab, "trainer", {"gradient_checkpointing": True})
    assert after == pytest.approx(advice["bytes_after"], rel=0.03)
    assert after < answer["peak_bytes"] * 0.9


@pytest.mark.parametrize(("kind", "rows"), [("trainer", 64), ("lightning", 20_000)])
def test_a_framework_offloads_activations(memlab, kind, rows):
    # GIVEN training with a framework; WHEN it follows the advice to offload activations
    done = memlab.python(PROGRAM, kind, f"{{'rows': {rows}}}", fresh=True)
    advice = of_kind(advise(memlab, done.trace), "offload_activations")
    # THEN the peak is at most the predicted one, within 5 %. Of linear layers alone, the schedule keeps less than predicted
    after = peak(memlab, kind, {"rows": rows}, advice["how"])
    assert advice["bytes_after"] * 0.8 < after < advice["bytes_after"] * 1.05


def test_results_of_an_evaluation_move_to_the_host(memlab):
    # GIVEN an evaluation that collects its logits on the GPU
    done = memlab.python(PROGRAM, "evaluation", "{'rows': 2}", fresh=True)
    assert done.code == 0, done.errors
    # THEN the argument is advised with a prediction that holds, AND no batch is, since the logits grow with the evaluation
    answer = advise(memlab, done.trace)
    assert answer["batch"] is None and "evaluation" in answer["no_batch"]
    advice = of_kind(answer, "evaluation_results")
    steps = int(re.search(r"eval_accumulation_steps=(\d+)", advice["how"]).group(1))
    after = peak(memlab, "evaluation", {"rows": 2, "eval_accumulation_steps": steps})
    assert after == pytest.approx(advice["bytes_after"], rel=0.05)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("trainer", "TrainingArguments(bf16=True)"),
        ("lightning", "Trainer(accumulate_grad_batches=2)"),
        ("accelerate", "Accelerator(gradient_accumulation_steps=2)"),
    ],
)
def test_an_error_of_the_framework_has_its_terms(memlab, kind, said):
    # GIVEN a batch that exceeds the card
    done = memlab.python(PROGRAM, kind, "{'rows': 4_000_000}" if kind != "trainer" else "{'rows': 20_000}", fresh=True)
    assert done.code != 0 and "OutOfMemoryError" in done.errors, done.errors
    # THEN the advice is in the framework's terms, AND memlab names no batch
    text = text_of(memlab, "report", done.trace)
    assert said in text, text
    advised = text_of(memlab, "advise", done.trace)
    assert "should fit" not in advised and "nothing to change" not in advised
    assert "After the out-of-memory error" in advised


@pytest.mark.parametrize(
    ("kind", "before", "changed", "at_most"),
    [
        ("trainer", {"rows": 64}, {"rows": 32, "gradient_accumulation_steps": 2}, 0.6),
        ("trainer", {"rows": 64}, {"bf16": True}, 0.75),
        ("trainer", {"rows": 1}, {"optim": "adafactor"}, 0.9),
        ("evaluation", {"rows": 8}, {"argmax": True}, 0.6),
        ("evaluation", {"rows": 128, "samples": 128, "argmax": True}, {"rows": 64}, 0.7),
        ("lightning", {"rows": 20_000}, {"rows": 10_000, "accumulate_grad_batches": 2}, 0.6),
        ("lightning", {"rows": 20_000}, {"precision": "bf16-mixed"}, 0.75),
        ("accelerate", {"rows": 20_000}, {"rows": 10_000, "gradient_accumulation_steps": 2}, 0.6),
        ("accelerate", {"rows": 20_000}, {"mixed_precision": "bf16"}, 0.75),
    ],
)
def test_the_arguments_lower_the_peak(memlab, kind, before, changed, at_most):
    # GIVEN training with a framework; WHEN it follows the advice after an error; THEN its peak is lower
    assert peak(memlab, kind, before | changed) <= at_most * peak(memlab, kind, before)


@pytest.mark.parametrize(
    ("program", "arguments", "said", "wrong"),
    [
        ("framed.py", ["evaluation", "{'rows': 800}"], "eval_accumulation_steps=8", "Inputs hold"),
        ("advised.py", ["attention", "--scale", "80"], "Pass need_weights=False", "batch 1."),
    ],
)
def test_an_error_names_the_argument_that_avoids_it(memlab, program, arguments, said, wrong):
    # GIVEN a program that runs out of memory by a default of a library
    done = memlab.python(PROGRAM.with_name(program), *arguments, fresh=True)
    assert done.code != 0 and "OutOfMemoryError" in done.errors, done.errors
    # THEN the finding is the argument, AND advice by category does not contradict it
    (finding,) = [one for one in memlab.report(done.trace)["findings"] if one["kind"] == "out_of_memory"]
    assert said in finding["next"]
    assert wrong not in text_of(memlab, "report", done.trace) + text_of(memlab, "advise", done.trace)


def test_an_import_is_no_framework(memlab):
    # GIVEN a hand-written loop in a program that imports all frameworks; THEN the advice has none of their terms
    done = memlab.python(PROGRAM, "imports", fresh=True)
    assert done.code == 0, done.errors
    answer = advise(memlab, done.trace)
    assert answer["advice"] and not TERMS.search(json.dumps(answer["advice"]))
    assert not TERMS.search(text_of(memlab, "advise", done.trace).replace(PROGRAM.name, ""))
