"""Small programs that memlab once handled wrongly, each with its correct result."""

import json
import subprocess
from pathlib import Path

import pytest
from conftest import PYTHON, ROOT

PROGRAMS = Path(__file__).parent / "programs"
MIB = 1 << 20


@pytest.fixture
def answer(memlab):
    """JSON output of a program on a simulated card with that much memory."""

    def answer(name, *arguments, gibibytes=8):
        env = {"PYTHONPATH": ROOT / "python"}
        run = memlab.python(PROGRAMS / name, *arguments, preload=False, memory=f"{gibibytes}GiB", env=env)
        assert run.code == 0, run.errors[-3000:]
        return json.loads(run.output.splitlines()[-1])

    return answer


def test_gradients_are_those_of_the_whole_batch_or_refused(answer):
    pytest.importorskip("transformers")
    # GIVEN rows with Python numbers, rows that depend on earlier ones, and a loss that balances experts over a batch
    found = answer("wrong_gradients.py")
    # THEN the first are split with their rows and give the gradients of the full batch, AND the others are refused
    assert found["lengths as a list"] < 1e-5
    assert "depend on which others are in its batch" in found["time first"]
    assert "balances experts" in found["balanced experts"]


def test_a_list_of_modules_on_the_cpu_gets_inputs_of_the_cpu(answer):
    # GIVEN capacities from none to all layers; WHEN the chunked model is called again; THEN each call works
    assert list(answer("chunk_modulelist.py").values()) == [[2, 64]] * 4


@pytest.mark.parametrize("kind", ["replay", "pieces"])
def test_no_step_takes_more_memory_than_allowed(answer, kind):
    # GIVEN a limit of 700 MiB; WHEN a batch is computed four times; THEN no step exceeds it, AND most of it is used
    assert 600 * MIB < answer("memory_limit.py", kind, "700") <= 700 * MIB


def test_outputs_and_their_gradients_count_too(answer):
    # GIVEN outputs that take a fifth of the card; THEN no step runs out of memory
    assert answer("outputs_count_too.py", gibibytes=2) == [0, 0, 0]


def test_the_simulated_card_computes_zeros(answer):
    # GIVEN memory that held other bytes; THEN values that kernels would have computed are 0
    assert answer("stale_bytes.py") == {"item": 0, "rows": 0}


@pytest.mark.parametrize(("batch", "reserved"), [(6, 1_121_976_320), (10, 1_845_493_760)])
def test_a_3d_unet_reserves_what_it_does_on_a_card(memlab, batch, reserved):
    # GIVEN a 3D U-Net with mixed precision, whose last filter is 1x1x1, and its reserved bytes on an H100 with PyTorch 2.11
    command = [memlab.command, "plan", "--card", "h100", "--training-only", "--steps", "3", "--batch", batch, "--json"]
    command += ["--", PYTHON, PROGRAMS / "unet3d.py", batch]
    # WHEN it is planned
    plan = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=memlab.environment())
    # THEN the planned reserved bytes match, within 2 %: versions of PyTorch and cuDNN differ by about 1 %
    assert plan.returncode == 0, plan.stderr
    [row] = json.loads(plan.stdout)["batches"]
    assert row["peak_reserved_bytes"] == pytest.approx(reserved, rel=0.02)
