"""Copies of device memory to the host, which memlab records with `MEMLAB_READBACKS=1`."""

import pytest
from trace_reader import Trace

PROGRAM = """
import torch
x = torch.ones(1 << 20, device="cuda")
total = x.sum().item()
for _ in range(3):
    found = x[:8].nonzero()
host = x.cpu()
"""
ITEM, NONZERO, CPU = 4, 6, 7


@pytest.mark.parametrize("wanted", [True, False])
def test_each_is_recorded_at_its_line_if_wanted(memlab, wanted):
    # GIVEN a program that copies device memory to the host on three of its lines
    (memlab.folder / "program.py").write_text(PROGRAM)
    # WHEN it is recorded
    run = memlab.python("program.py", env={"MEMLAB_READBACKS": int(wanted)})
    assert run.code == 0, run.errors
    trace = Trace(run.trace)

    def line(stack):
        _, frame = trace.stacks[stack]
        return trace.frames[frame][1]

    read = [(line(event[4]), event[3]) for event in trace.events if event[0] == "read"]
    # THEN each copy is in the trace with its line and size; by default memlab records none
    if wanted:
        assert (ITEM, 4) in read and (CPU, 4 << 20) in read
        assert sum(line == NONZERO for line, _ in read) >= 3
        assert {line for line, _ in read} == {ITEM, NONZERO, CPU}
    else:
        assert read == []
    # AND the report's memory figures are unaffected
    assert memlab.report(run.trace)["devices"][0]["peak_allocated_bytes"] >= 4 << 20
