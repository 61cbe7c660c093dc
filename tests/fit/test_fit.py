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
    target = 1900
    fitted, messages, code = run(memlab, "language", "--fit", f"{target}MiB")
    # THEN the loss is computed in rows, AND a part of the state is on the host
    assert code == 0, messages
    assert "the loss in rows and 8 of 8 modules" in messages, messages
    assert "MiB of optimizer state on the host between steps" in messages, messages
    assert fitted["used"] <= target * MIB
    # AND after some steps, a message has the changes and what each takes of a step, measured
    said = re.search(
        r"applied (.*)\. A step takes \d+ ms, of it (.*)\. PyTorch has reserved (\S+) GiB; \S+ GiB were", messages
    )
    assert said and said[1].startswith("expandable segments, ") and float(said[3]) <= target / 1024, messages
    for part in ("compute the loss in rows", "compute activations again", "wait for the optimizer's state"):
        assert f" ms to {part}" in said[2], messages
    # AND without these changes, it does not fit
    for change in ("loss", "state"):
        _, messages, code = run(memlab, "language", "--fit", f"{target}MiB", "--fit-without", change)
        assert code == 2 and "misses by" in messages, messages


@pytest.mark.parametrize("case", ["single", "loose"])
def test_activations_leave_where_no_module_can_be_recomputed(memlab, case):
    # GIVEN a model without submodules, or without a common forward; WHEN it must fit into a half of what it takes
    plain, _, _ = run(memlab, case, "--fit", "12GiB")
    target = plain["used"] // 2 // MIB
    fitted, messages, code = run(memlab, case, "--fit", f"{target}MiB")
    # THEN it does, with activations off the GPU
    assert code == 0 and "activations off the GPU (" in messages, messages
    assert "checkpointed" not in messages
    assert fitted["reserved"] + plain["used"] - plain["reserved"] <= target * MIB
    # AND without this change, it is not started
    _, messages, code = run(memlab, case, "--fit", f"{target}MiB", "--fit-without", "activations")
    assert code == 2 and "misses by" in messages, messages


@pytest.mark.long
def test_compiled_graphs_keep_less_if_rounding_may_change(memlab):
    # GIVEN a program that is compiled as a whole: no module can be recomputed, and its backward gets all activations at once
    target = 4300
    figures, messages, code = run(memlab, "compiled", "--fit", f"{target}MiB")
    # THEN it is not started, AND the error names what may help
    assert (figures, code) == (None, 2), messages
    assert "With `--fit-allow rounding`" in messages
    # WHEN results may change in their last bits, THEN its graphs keep a share of the activations, AND the message says so
    fitted, messages, code = run(memlab, "compiled", "--fit", f"{target}MiB", "--fit-allow", "rounding")
    assert code == 0, messages
    assert re.search(r"compiled graphs that keep \d+ % of their activations \(rounds differently\)", messages), messages
    assert fitted["used"] <= target * MIB


def test_a_module_can_be_left_out(memlab):
    # GIVEN the modules that memlab chooses
    sentence, _, _ = code_for(memlab, "5GiB", "--", PYTHON, PROGRAM, "plain")
    chosen = chosen_in(sentence)
    # WHEN they are left out; THEN it takes others
    without = [f"--without=blocks.{number}" for number in chosen]
    sentence, _, _ = code_for(memlab, "5GiB", *without, "--", PYTHON, PROGRAM, "plain")
    others = chosen_in(sentence)
    assert chosen and others and not chosen & others


def chosen_in(sentence):
    """Returns the numbers of the blocks that are named in a sentence as `blocks.1 … blocks.3, blocks.5`."""
    place = re.search(r"checkpointed \((.*?)\)", sentence)[1]
    ranges = [[int(number) for number in re.findall(r"blocks\.(\d+)", part)] for part in place.split(", ")]
    return {number for part in ranges for number in range(part[0], part[-1] + 1)}


def code_for(memlab, size, *program):
    """Returns what `memlab fit` prints, and the code in it."""
    command = [memlab.command, "fit", "--size", size, *program]
    done = memlab.run(*command, preload=False, memory="16GiB", fresh=True)
    assert done.code == 0, done.errors
    sentence, _, code = done.output.partition("\n\n")
    return sentence, code, done.errors


def test_the_changes_are_shown_as_code(memlab):
    # GIVEN a program with a large cross entropy; WHEN memlab chooses changes without running it
    sentence, code, _ = code_for(memlab, "2200MiB", "--", PYTHON, PROGRAM, "language")
    # THEN the code makes them: the loss and its gradient are the same, blocks are checkpointed, gradients are released
    assert "the loss in rows" in sentence and "modules checkpointed" in sentence and "about +" in sentence
    program = memlab.folder / "as_code.py"
    program.write_text(code + CHECK)
    done = memlab.run(PYTHON, program, preload=False, fresh=True)
    assert done.code == 0, done.errors
    assert done.output.split() == ["True"] * 4


CHECK = """
from torch import nn
made = [4 * torch.randn(700, 50) for _ in range(2)]
target = torch.randint(0, 50, (700,))
target[::9] = -100
for logits in made:
    logits.data.copy_(made[0].detach())
    logits.requires_grad_()
losses = [loss(logits, target) for loss, logits in zip((F.cross_entropy, cross_entropy), made)]
sum(losses).backward()
print(torch.equal(*losses), torch.equal(made[0].grad, made[1].grad))

model = nn.Module()
model.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(8))
checkpoint_layers(model)
x = torch.ones(1, 4)
for block in model.blocks:
    x = block(x)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x.sum().backward()
optimizer.step()
print(any("forward" in vars(block) for block in model.blocks), model.blocks[0].weight.grad is None)
"""


def test_a_trace_takes_the_place_of_the_first_recording(memlab):
    # GIVEN a trace with GPU times of another program, in which the first four blocks take far longer
    trace = memlab.folder / "plain.jsonl"
    command = [memlab.command, "run", "--force", "--time", "-o", trace, "--", PYTHON, PROGRAM, "slow"]
    assert memlab.run(*command, preload=False, memory="16GiB", fresh=True).code == 0
    # WHEN memlab chooses changes for the plain program from that trace
    sentence, _, messages = code_for(memlab, "5GiB", trace, "--", PYTHON, PROGRAM, "plain")
    # THEN it does not record it again, AND takes the blocks that are cheap in the trace
    assert "recording" not in messages
    assert chosen_in(sentence) <= {4, 5, 6, 7}, sentence
    # AND without a command, it takes that of the trace
    assert "trained.py slow takes" in code_for(memlab, "12GiB", trace)[0]
    # AND a file that is not a trace is named
    done = memlab.run(memlab.command, "fit", "--size", "5GiB", PROGRAM, preload=False, fresh=True)
    assert done.code == 2 and "trained.py" in done.errors
