"""Memory that array libraries (CuPy, Numba, JAX) allocate from the driver has a line, a layer and a separate category."""

import json
import subprocess
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
PROGRAM = PROGRAMS / "arrays.py"
MIB = 1 << 20


@pytest.fixture
def library(memlab):
    """Compiles the library under a name."""

    def compiled(name):
        file = memlab.folder / name
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", file, PROGRAMS / "arrays.c", "-ldl"], check=True)
        return file

    return compiled


def line_with(text):
    (number,) = (number for number, line in enumerate(PROGRAM.read_text().splitlines(), 1) if line.endswith(text))
    return number


def category(report, name):
    (found,) = (category for category in report["categories"] if category["name"] == name)
    return found["bytes_at_peak"], found["bytes_at_end"]


def lines_of(report):
    return {line["line"]: line for line in report["lines"] if line["file"] and line["file"].endswith("arrays.py")}


def test_a_program_without_pytorch(memlab, library):
    # GIVEN a program that allocates two arrays from the driver and frees one
    run = memlab.python(PROGRAM, "alone", library("runtime.so"))
    assert run.code == 0, run.errors
    report = memlab.report(run.trace)
    # THEN both lines are named, at the peak and at the end
    lines = lines_of(report)
    kept, gone = lines[line_with("# kept")], lines[line_with("# gone")]
    assert (kept["live_bytes_at_peak"], kept["live_bytes_at_end"]) == (64 * MIB, 64 * MIB)
    assert (gone["live_bytes_at_peak"], gone["live_bytes_at_end"]) == (96 * MIB, 0)
    # AND their memory is in the category of other arrays, not of workspaces
    assert category(report, "other_arrays") == (160 * MIB, 64 * MIB)
    assert category(report, "workspace") == (0, 0)
    assert report["findings"] == []


def test_beside_pytorch(memlab, library):
    # GIVEN a module whose forward allocates an array of another library
    run = memlab.python(PROGRAM, "beside", library("runtime.so"))
    assert run.code == 0, run.errors
    report = memlab.report(run.trace)
    (device,) = report["devices"]
    # THEN PyTorch's allocated bytes are unchanged, and the array is beside them with its line and layer
    assert device["allocated_bytes"] == int(run.output)
    assert category(report, "other_arrays")[1] == 24 * MIB
    assert lines_of(report)[line_with("# in a layer")]["live_bytes_at_end"] == 24 * MIB
    assert [layer["live_bytes_at_end"] for layer in report["layers"] if layer["type"] == "Rows"] == [24 * MIB + 4 * MIB]
    # AND so it is in a report of the last moment, whose shares are of the memory of all lines
    at_end = subprocess.run([memlab.command, "report", run.trace, "--at", "end", "--json"], capture_output=True, check=True)
    held = {line["line"]: line["live_bytes"] for line in json.loads(at_end.stdout)["lines"]}
    assert held[line_with("# in a layer")] == 24 * MIB
    command = [memlab.command, "report", "--full", run.trace]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "of held" in text and "75 %" in text and "300 %" not in text
    # AND the categories sum to the device's used bytes
    assert sum(category["bytes_at_end"] for category in report["categories"]) == device["used_bytes"]


def test_a_pool_of_jax_is_a_finding(memlab, library):
    # GIVEN XLA's library, which allocates three quarters of the card at once
    run = memlab.python(PROGRAM, "pool", library("xla_cuda_plugin.so"), memory="2GiB")
    assert run.code == 0, run.errors
    # THEN the report names it, and a way to limit it
    (finding,) = memlab.report(run.trace)["findings"]
    assert (finding["kind"], finding["bytes"]) == ("jax_pool", 1536 * MIB)
    assert "JAX reserves 1.50 GiB" in finding["what"]
    assert "XLA_PYTHON_CLIENT_PREALLOCATE=false" in finding["next"]
