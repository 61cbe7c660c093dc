"""`memlab run --fit` with frameworks, jobs of several ranks and several models."""

import json
import os
import re
from pathlib import Path

import pytest
from conftest import PYTHON

PROGRAM = Path(__file__).parent / "programs" / "frameworks.py"
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
# Packages that are not installed everywhere.
NEEDS = {"lightning": "lightning", "trainer": "transformers", "accelerate": "accelerate"}


@pytest.mark.parametrize("case", ["lightning", "fsdp", "ddp", "gan", "accelerate", "trainer", "compiled"])
def test_a_program_fits_into_less_memory(memlab, case):
    if case in NEEDS:
        pytest.importorskip(NEEDS[case])
    launcher, devices = (TORCHRUN, 2) if case in ("ddp", "fsdp") else ([PYTHON], 1)

    def run(*options):
        trace = memlab.folder / "run.jsonl"
        command = [memlab.command, "run", "--force", "-o", trace, *options, "--", *launcher, PROGRAM, case]
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
        done = memlab.run(*command, preload=False, memory="16GiB", devices=devices, env=environment, fresh=True)
        assert done.code == 0, done.errors
        reserved = [json.loads(line)["reserved"] for line in re.findall(r'\{"reserved.*?\}', done.output)]
        return reserved, done.errors

    # GIVEN what a program takes
    plain, _ = run()
    context = 764 << 20
    # WHEN it must fit into two thirds
    target = (max(plain) + context) * 2 // 3 >> 20
    fitted, messages = run("--fit", f"{target}MiB")
    # THEN each rank does, AND memlab checkpoints modules and releases gradients
    assert len(fitted) == len(plain) == devices
    assert max(fitted) + context <= target << 20, messages
    assert re.search(r"Fits in .*modules checkpointed", messages), messages
    assert "early gradients" in messages, messages
