"""`memlab.inspect`: what a training will take at other batch sizes, from its model alone."""

import json
import subprocess
import sys

import memlab as package
import pytest
import torch
from conftest import PROGRAMS, PYTHON, ROOT

sys.path.insert(0, str(PROGRAMS))
import inspected  # noqa: E402

GIB = 1 << 30


@pytest.mark.parametrize("case", inspected.CASES)
def test_figures_are_those_of_a_run(memlab, case):
    # GIVEN a model without weights, and an example of one row
    make, batch_of, options = inspected.CASES[case]
    with torch.device("meta"):
        model = make()
    # WHEN it is inspected, with recordings of 2 and 4 rows
    report = package.inspect(model, batch_of(1), source="simulated", **options)
    # THEN what it says of other batch sizes is, to the byte, what the program takes that trains it
    for batch in (3, 12):
        run = memlab.python(PROGRAMS / "inspected.py", case, batch, preload=False, simgpu=("--card", "h100"), memory="79GiB")
        assert run.code == 0, run.errors
        peak = report.peak(batch)
        assert [peak.allocated, peak.reserved] == json.loads(run.output)
