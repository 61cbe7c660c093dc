"""Programs written without memlab in mind run as before, and their traces are consistent."""

import pytest
from conftest import ROOT

SIMGPU_PROGRAMS = ROOT / "simgpu" / "programs"
TWO_DEVICES = {"two_devices", "ddp"}


@pytest.mark.parametrize("name", sorted(path.stem for path in SIMGPU_PROGRAMS.glob("*.py")))
def test_program(memlab, name):
    # GIVEN a program that checks itself on the simulated GPU: HF's Trainer, CUDA graphs, IPC, DDP …
    program = SIMGPU_PROGRAMS / f"{name}.py"
    devices = 2 if name in TWO_DEVICES else 1
    # WHEN it runs under memlab
    is_fresh = "PYTORCH_ALLOC_CONF" in program.read_text()  # The program sets it before it imports PyTorch.
    run = memlab.python(program, devices=devices, env={"MEMLAB_OUTPUT": "%p.jsonl"}, fresh=is_fresh)
    # THEN it succeeds, memlab reports no error, and each process's trace is consistent
    assert run.code == 0, run.errors
    assert "memlab:" not in run.errors
    assert run.traces
    for trace in run.traces:
        report = memlab.report(trace)
        assert report["warnings"] == []
        assert report["trace"]["skipped_lines"] == 0
        assert set(report["trace"]["anomalies"].values()) == {0}, report["trace"]["anomalies"]
        for device in report["devices"]:
            lines = [line for line in report["lines"] if line["device"] == device["index"]]
            assert sum(line["live_bytes_at_end"] for line in lines) == device["allocated_bytes"]
            assert sum(line["live_bytes_at_peak"] for line in lines) == device["peak_allocated_bytes"]
