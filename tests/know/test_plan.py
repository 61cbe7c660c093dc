"""`memlab plan` against PyTorch on the simulated GPU: plans from two small batches match PyTorch at other batches."""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import PYTHON, full

PROGRAMS = Path(__file__).parent / "programs"

PLANNED, LIBRARIES = PROGRAMS / "planned.py", PROGRAMS / "planned_libraries.py"
OWN = ["gpt-scaled", "gpt-recompute", "accumulated", "lstm", "resnet-momentum", "gan"]
MORE_OWN = ["gpt", "gpt-amp", "gpt-fused", "gpt-eager", "resnet", "unet", "diffusion"]
OF_LIBRARIES = ["hf-llama-lora", "timm-vit", "trainer"]
MORE_OF_LIBRARIES = ["hf-gpt2", "hf-llama", "hf-t5", "hf-vit", "trainer-lora"]
# Their steps vary, and kernels change between the batches: within 1 %.
CLOSE = ["trainer", "trainer-lora"]
# The last one is recorded too.
PREDICTED = [9, 20, 48]


def plan(memlab, *arguments, program=(), env=None, timeout=300):
    command = [memlab.command, "plan", *arguments, *(["--", PYTHON, *program] if program else [])]
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        cwd=memlab.folder,
        env=memlab.environment(**(env or {})),
        timeout=timeout,
    )


def planned(memlab, *arguments, program, env=None):
    done = plan(memlab, "--json", *arguments, program=program, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def peaks(memlab, *program, memory="80GiB", env=None):
    """Peaks of PyTorch's counters after a plain run of the program; None if it ran out of memory."""
    run = memlab.run(PYTHON, *program, simgpu=("--card", "h100"), memory=memory, preload=False, env=env)
    if "OutOfMemoryError" in run.errors:
        return None
    assert run.code == 0, run.errors
    return [json.loads(line) for line in run.output.splitlines() if line.startswith("[")]


def planned_peaks(answer):
    return [[row["peak_allocated_bytes"], row["peak_reserved_bytes"]] for row in answer["batches"]]


@pytest.mark.parametrize("kind", [*OWN, *OF_LIBRARIES, *full(*MORE_OWN, *MORE_OF_LIBRARIES)])
def test_two_small_batches_give_the_others_to_the_byte(memlab, kind):
    """GIVEN a training planned from steps at batch 8 and 16
    WHEN it runs at other batches
    THEN PyTorch's peaks of allocated and reserved memory are the planned ones."""
    program = PLANNED if kind in OWN + MORE_OWN else LIBRARIES
    batches = ",".join(map(str, PREDICTED))
    answer = planned(memlab, "--predict", batches, program=(program, kind, "--batch", "{batch}"))
    commands = [(program, kind, "--batch", batch) for batch in PREDICTED]
    runs = memlab.each(*commands, simgpu=("--card", "h100"), memory="80GiB")
    if kind in CLOSE:
        assert planned_peaks(answer) == [pytest.approx(run, rel=0.01) for run in runs]
    else:
        assert planned_peaks(answer) == runs


@pytest.mark.long
def test_compiled_code_is_planned_to_the_byte(memlab):
    """GIVEN a model compiled by torch.compile with inductor
    WHEN it is planned from batch 8 and 16
    THEN its peaks at batches between them are the planned ones."""

    # Each with a separate cache: a program that finds its code in inductor's cache peaks about 1 % higher or lower.
    def caching_in(name):
        return {"TORCHINDUCTOR_CACHE_DIR": memlab.folder / name, "TORCHINDUCTOR_COMPILE_THREADS": 1}

    program = (PLANNED, "gpt-compiled", "--batch")
    answer = planned(memlab, "--predict", "12", program=(*program, "{batch}"), env=caching_in("of-the-plan"))
    assert planned_peaks(answer) == peaks(memlab, *program, "12", env=caching_in("of-the-run"))


# On one thread. (Autograd's own thread frees some memory a little earlier or later from run to run.)
STEPS = """
import json, sys, torch
batch = int(sys.argv[1])
weights = torch.nn.Parameter(torch.zeros(3 << 20, device="cuda"))
weights.grad = torch.zeros_like(weights)
optimizer = torch.optim.Adam([weights])
for _ in range(12):
    kept = []
    for layer in range(8):
        temporary = torch.empty(batch * (70_000 + 1000 * layer), device="cuda")
        kept.append(torch.empty(batch * (40_000 + 3000 * layer), device="cuda"))
        del temporary
    while kept:
        gradient = torch.empty(batch * 30_000, device="cuda")
        del gradient, kept[-1]
    optimizer.step()
print(json.dumps([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]))
"""


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_the_largest_batch_runs_and_one_more_does_not(memlab, settings):
    """GIVEN the largest batch for a card, and the smallest card for it
    WHEN it runs there
    THEN it succeeds, and fails on a card with 2 MiB less, and at the next batch on the first card."""
    answer = planned(memlab, "--card", "2GiB", "--allocator", settings, program=("-c", STEPS, "{batch}"))
    largest = answer["largest_batch"]
    assert largest > 200
    (needed,) = [row["needed_bytes"] for row in answer["batches"] if row["batch"] == largest]
    cases = [(largest, 2 << 30), (largest, needed), (largest, needed - (2 << 20)), (largest + 1, 2 << 30)]
    env = {"PYTORCH_CUDA_ALLOC_CONF": settings}
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda case: peaks(memlab, "-c", STEPS, case[0], memory=f"{case[1]}B", env=env), cases))
    assert [run is not None for run in runs] == [True, True, False, False]


@pytest.mark.long
def test_other_settings_of_the_allocator_are_planned_from_the_same_recording(memlab):
    """GIVEN a plan under expandable segments, recorded without
    WHEN the program runs under them
    THEN it reserves the planned bytes, and the plan without recommends them if they are better."""
    settings = "expandable_segments:True"
    program = (PLANNED, "gpt", "--batch", "{batch}")
    answer = planned(memlab, "--predict", "24", "--allocator", settings, program=program)
    run = peaks(memlab, PLANNED, "gpt", "--batch", "24", env={"PYTORCH_CUDA_ALLOC_CONF": settings})
    assert planned_peaks(answer) == run
    today, *others = answer["settings"]
    assert (today["settings"], today["is_current"]) == (settings, True)
    assert {other["settings"] for other in others} >= {"", "max_split_size_mb:256"}


@pytest.mark.long
def test_a_batch_below_the_recorded_ones_is_recorded_itself(memlab):
    """GIVEN batch 1, at which other kernels run
    WHEN it is planned beside batch 8 and 16
    THEN it is correct too."""
    answer = planned(memlab, "--predict", "1", program=(PLANNED, "gpt", "--batch", "{batch}"))
    assert planned_peaks(answer) == peaks(memlab, PLANNED, "gpt", "--batch", "1")


def test_the_peak_by_category_line_and_layer(memlab):
    """GIVEN a plan
    WHEN its peak is read
    THEN categories, lines and layers each sum to the allocated bytes, and the largest of them are the program's."""
    answer = planned(memlab, "--predict", "8", program=(PLANNED, "gpt", "--batch", "{batch}"))
    peak = answer["peak"]["allocated_bytes"]
    for part in ("categories", "lines", "layers"):
        assert sum(row["bytes"] for row in answer[part]) == peak, part
    assert answer["categories"][0]["name"] == "activations"
    assert any("planned.py:" in row["name"] for row in answer["lines"][:3])
    assert answer["peak"]["phase"] in ("forward", "backward")


def test_traces_that_were_kept_give_the_same_plan(memlab):
    """GIVEN the traces of a plan
    WHEN they are planned with
    THEN the figures are the same."""
    arguments = ("--predict", "8,16", "--card", "1GiB")
    first = planned(memlab, *arguments, "--keep", "kept", program=(PLANNED, "gan", "--batch", "{batch}"))
    done = plan(memlab, "--json", *arguments, "--batch", "8,16", "kept/batch-8.jsonl", "kept/batch-16.jsonl")
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert [again[part] for part in ("batches", "largest_batch", "lines")] == [
        first[part] for part in ("batches", "largest_batch", "lines")
    ]


def test_a_program_without_a_batch_size_is_planned_as_it_is(memlab):
    """GIVEN a command without {batch}
    WHEN it is planned for a card that is too small, as text
    THEN the plan reports that it does not fit, the excess bytes, and the largest holders."""
    done = plan(memlab, "--card", "1GiB", program=(PLANNED, "gpt", "--batch", "64"), env={"COLUMNS": 120})
    assert done.returncode == 0, done.stderr
    assert "It does not fit." in done.stdout
    assert "too much; activations hold" in done.stdout
    assert "as it is" in done.stdout
    assert max(map(len, done.stdout.split("What to do")[0].splitlines())) <= 120


UNEVEN = """
import sys, torch
batch = int(sys.argv[1])
weights = torch.nn.Parameter(torch.zeros(1 << 20, device="cuda"))
optimizer = torch.optim.SGD([weights], lr=1.0)
for _ in range(4):
    pairs = torch.zeros(batch, batch, 1 << 10, device="cuda")
    (weights.sum() + pairs.sum()).backward()
    optimizer.step()
"""
OF_A_LIBRARY = """
import sys, torch, transformers
config = transformers.GPT2Config(n_layer=2, n_embd=128, n_head=2, vocab_size=500, n_positions=64)
model = transformers.GPT2LMHeadModel(config).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    words = torch.zeros(int(sys.argv[1]), 64, dtype=torch.long, device="cuda")
    model(input_ids=words, labels=words).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.long
def test_batches_that_were_not_recorded_are_named(memlab):
    """GIVEN a program without convolutions whose memory grows with the square of the batch
    WHEN batches are planned, one of them too large to record
    THEN the warning names it, and does not blame cuDNN."""
    answer = planned(memlab, "--batch", "4,8", "--predict", "16,100", program=("-c", UNEVEN, "{batch}"))
    (warning,) = [text for text in answer["warnings"] if "grow evenly" in text]
    assert 16 in answer["recorded_batches"] and 100 not in answer["recorded_batches"]
    assert "batch 100 was not recorded" in warning and "cuDNN" not in warning


@pytest.mark.long
def test_lines_of_libraries_are_named_if_the_program_has_one_line(memlab):
    """GIVEN training that calls a library's model in one line
    WHEN it is planned
    THEN the plan has the lines of the library, as its report does."""
    answer = planned(memlab, "--predict", "8", program=("-c", OF_A_LIBRARY, "{batch}"))
    assert sum("modeling_gpt2.py" in row["name"] for row in answer["lines"]) > 1


FAILING = "import torch; torch.zeros(9, device='cuda'); print('on the way'); raise SystemExit('no such dataset')"
READING = """
import sys, torch
weights = torch.nn.Parameter(torch.zeros(1 << 20, device="cuda"))
optimizer = torch.optim.SGD([weights], lr=1.0)
for _ in range(20):
    chosen = (weights > 0).nonzero()
    (weights.sum() * int(sys.argv[1])).backward()
    optimizer.step()
"""


def test_lines_that_read_values_back_are_warned_about(memlab):
    """GIVEN a program that reads back the number of positive weights
    WHEN it is planned
    THEN the plan names the line, because the value is 0 on the simulated card."""
    answer = planned(memlab, program=("-c", READING, "{batch}"))
    (warning,) = [text for text in answer["warnings"] if "read back" in text]
    assert "<string>:6" in warning and "--on gpu" in warning


@pytest.mark.parametrize(
    ("arguments", "program", "said"),
    [
        (
            (),
            ("-c", FAILING),
            "exit code 1. Fix the error below, or check with `memlab simulate -- CMD`:\non the way\nno such dataset",
        ),
        ((), ("-c", "print('hello')"), "did not use a GPU"),
        (("--card", "h1000"), ("-c", "pass"), "h100"),
        (("--batch", "4,4"), (PLANNED, "gan", "--batch", "{batch}"), "use two batch sizes"),
        (("--batch", "4"), (PLANNED, "gan", "--batch", "{batch}"), "--batch 8,16"),
        (("--allocator", "max_split_size_mb:1"), (PLANNED, "gan", "--batch", "2"), "at least 20"),
    ],
)
def test_errors_name_the_cause(memlab, arguments, program, said):
    """GIVEN a program or an option that cannot be planned with
    WHEN it is planned
    THEN the error states what happened, and no files remain."""
    done = plan(memlab, *arguments, program=program, env={"TMPDIR": memlab.folder})
    assert done.returncode != 0
    assert said in done.stderr, done.stderr
    assert not list(memlab.folder.glob("memlab-plan-*"))
    assert not list(memlab.folder.glob("*.jsonl"))


def test_the_program_ends_before_it_saves_anything(memlab):
    """GIVEN training that would write a file at its end
    WHEN it is planned
    THEN the file is not written."""
    program = READING + "\nopen('checkpoint', 'w').close()\n"
    planned(memlab, program=("-c", program, "{batch}"))
    assert not os.path.exists(memlab.folder / "checkpoint")
