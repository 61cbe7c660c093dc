"""`memlab plan --lengths` and `memlab.inspect(…, lengths=…)` against PyTorch's allocator, which runs the same sequence."""

import json
import random
from pathlib import Path

import memlab as package
import numpy
import pytest
import test_plan
import torch
from conftest import full
from torch import nn

PROGRAMS = Path(__file__).parent / "programs"

PROGRAM = PROGRAMS / "sequences.py"
EXPANDABLE = "expandable_segments:True"
BATCH = 4


def lengths_of_a_training():
    chosen = random.Random(7)
    return [chosen.randint(16, 640) for _ in range(60)]


def plan(memlab, *arguments, **options):
    return test_plan.plan(memlab, *arguments, timeout=500, **options)


def planned(memlab, kind, lengths, *arguments):
    program = (PROGRAM, kind, "--batch", "{batch}", "--length", "{length}")
    done = plan(memlab, "--json", "--batch", BATCH, "--lengths", lengths, *arguments, program=program)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["sequence"]


def peaks(memlab, kind, *cases):
    """Peaks of PyTorch's counters after steps of these lengths, under these settings: `(SETTINGS, LENGTHS)`."""
    commands = []
    for number, (_, lengths) in enumerate(cases):
        file = memlab.folder / f"{kind}-{number}.txt"
        file.write_text("\n".join(map(str, lengths)))
        commands.append((PROGRAM, kind, "--batch", BATCH, "--lengths", file))
    environments = [{"PYTORCH_CUDA_ALLOC_CONF": settings} for settings, _ in cases]
    return memlab.each(*commands, environments=environments, simgpu=("--card", "h100"), memory="80GiB")


def figures(row):
    return [row["peak_allocated_bytes"], row["peak_reserved_bytes"]]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gpt-eager", *full("gpt")])
def test_a_sequence_is_what_pytorch_takes(memlab, kind):
    """GIVEN 60 steps of random lengths, planned from recordings at three
    WHEN the steps run, in several orders and with expandable segments
    THEN PyTorch's peaks are the planned ones."""
    lengths = lengths_of_a_training()
    (memlab.folder / "lengths.txt").write_text("\n".join(map(str, lengths)) + "\n")
    answer = planned(memlab, kind, "lengths.txt")
    rows = {(row["order"], row["settings"]): row for row in answer["rows"]}
    longest = lengths.index(max(lengths))
    cases = {
        ("as given", ""): lengths,
        ("as given", EXPANDABLE): lengths,
        ("ascending", ""): sorted(lengths),
        ("longest first", ""): [lengths[longest], *lengths[:longest], *lengths[longest + 1 :]],
        ("padded to 128", ""): [-(-length // 128) * 128 for length in lengths],
    }
    runs = peaks(memlab, kind, *((settings, lengths) for (_, settings), lengths in cases.items()))
    for case, run in zip(cases, runs, strict=True):
        assert figures(rows[case]) == pytest.approx(run, rel=0.01), case
    # AND ascending order is the worst of them, and the advised one the best
    assert rows["ascending", ""]["peak_reserved_bytes"] > 2 * rows["as given", ""]["peak_reserved_bytes"]
    best = min(row["peak_reserved_bytes"] for row in answer["rows"] if row["order"] == "as given")
    assert rows["as given", EXPANDABLE]["peak_reserved_bytes"] == best
    assert [answer[part] for part in ("steps", "replayed_steps", "batch", "longest")] == [60, 60, BATCH, max(lengths)]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gpt-amp", "hf-gpt2", *full("gpt", "gpt-eager")])
def test_a_length_that_was_not_recorded(memlab, kind):
    """GIVEN recordings at lengths 128, 320 and 640, and a plan for steps that are padded to 768
    WHEN these run
    THEN PyTorch's peaks are the planned ones to the byte, also where attention grows with the square of the length."""
    answer = planned(memlab, kind, ",".join(["640"] * 12))
    assert answer["recorded_lengths"] == [128, 320, 640]
    (row,) = [row for row in answer["rows"] if (row["order"], row["settings"]) == ("padded to 256", "")]
    assert row["longest"] == 768
    assert [figures(row)] == peaks(memlab, kind, ("", [768] * 12))


@pytest.mark.long
def test_lengths_as_text(memlab):
    """GIVEN lengths on the command line, and a card on which they do not fit in the given order
    WHEN the sequence is planned as text
    THEN the plan reports that, has a table of orders and one of settings, and names a change that makes it fit."""
    program = (PROGRAM, "gpt-eager", "--batch", "4", "--length", "{length}", "--context", "512")
    arguments = ("--lengths", "100,300,200,500,450,510,480,64", "--card", "1200MiB")
    done = plan(memlab, *arguments, program=program, env={"COLUMNS": 140})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("8 steps of length 64 to 510, from recordings at 64, 192, 510\n")
    for said in (
        "padded to 256",
        "ascending",
        "roundup_power2_divisions:8",
        "If all steps had length 510:",
        "PyTorch's default",
    ):
        assert said in done.stdout
    tables = done.stdout.split("What to do")[0].splitlines()
    assert max(len(line) for line in tables if line.startswith("  ")) <= 140


@pytest.mark.parametrize(
    ("arguments", "program", "said"),
    [
        (("--lengths", "8,16"), ("-c", "pass"), "write {length} where the command takes the length"),
        (("--lengths", "nowhere.txt"), ("-c", "pass", "{length}"), "nowhere.txt: No such file"),
        (("--lengths", "words.txt"), ("-c", "pass", "{length}"), 'words.txt:2: "many" is not a length'),
        (("--lengths", "1,2"), ("-c", "pass", "{length}"), "the longest of the lengths must be 4 or more"),
        (("--lengths", "8,0"), ("-c", "pass", "{length}"), "write lengths as 512,300,1024"),
        (("--lengths", "8,16"), ("-c", "pass", "{batch}", "{length}"), "all steps have one batch size: --batch 8"),
        ((), ("-c", "pass", "{length}"), "--lengths FILE, with the length of each step"),
    ],
)
def test_errors_name_the_cause(memlab, arguments, program, said):
    (memlab.folder / "words.txt").write_text("8\nmany\n")
    done = plan(memlab, *arguments, program=program)
    assert done.returncode == 2
    assert said in done.stderr


class Attention(nn.Module):
    """An attention layer that materialises its scores."""

    def __init__(self):
        super().__init__()
        self.embedding, self.key = nn.Embedding(1000, 128), nn.Linear(128, 128)

    def forward(self, ids, scale):
        rows = self.embedding(ids)
        return (rows @ self.key(rows).transpose(1, 2)).softmax(-1) @ rows * scale[:, None, None]


@pytest.mark.long
def test_inspect_takes_lengths(memlab):
    # GIVEN a model whose batch has tensors with a length and one without, and the lengths of a training run
    batch = {"ids": torch.zeros(4, 32, dtype=torch.long), "scale": torch.ones(4)}
    lengths = numpy.array([500, 100, 740, 300, 760, 620, 1000, 80, 900] * 3)
    # WHEN it is inspected with them; THEN each order and setting has its figures, for the batch's number of rows
    report = package.inspect(Attention(), batch, source="simulated", card="2GiB", lengths=lengths)
    sequence = report.sequence
    assert (sequence.batch, sequence.dimension, sequence.tensors) == (4, 1, ("ids",))
    assert (sequence.steps, sequence.shortest, sequence.longest) == (27, 80, 1000)
    rows = {(row.order, row.allocator): row for row in sequence.rows}
    assert rows["as given", ""] == sequence.current
    assert rows["ascending", ""].reserved > sequence.current.reserved >= sequence.current.allocated
    assert len(rows) == 7 * 4 and all(row.allocated <= row.reserved and row.fits for row in sequence.rows)
    # AND the advice is printed below the table, also in notebooks
    assert sequence.advice and sequence.advice[1:] in str(report) and "dimension 1 of ids" in report._repr_html_()
    # AND the same from a file
    file = memlab.folder / "lengths.txt"
    file.write_text("\n".join(map(str, lengths)))
    again = package.inspect(Attention(), batch, source="simulated", card="2GiB", lengths=file)
    assert again.sequence == sequence
    # AND without lengths, the report has no sequence
    assert package.inspect(nn.Linear(4, 4), torch.zeros(1, 4), source="simulated").sequence is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lengths": []}, "one number for each step"),
        ({"lengths": [8, 0]}, "one number for each step"),
        ({"lengths": [8], "batch": torch.zeros(4)}, "pass length_dim="),
        ({"lengths": [8], "length_dim": 0}, "must differ from batch_dim"),
    ],
)
def test_wrong_lengths(options, said):
    options = {"batch": torch.zeros(1, 4), "source": "simulated"} | options
    with pytest.raises(ValueError, match=said):
        package.inspect(nn.Linear(4, 4), **options)
