"""Memory belongs to the lines and layers of the program also in less common ways to compile it."""

import functools
import subprocess
from pathlib import Path

import pytest
from conftest import PYTHON
from test_compiled import Compiled, check, run

pytestmark = pytest.mark.programs

PROGRAMS = Path(__file__).parent / "programs"

PROGRAM = PROGRAMS / "compiled_modes.py"
LINES = PROGRAM.read_text().splitlines()

CASES = {
    # The layers that must appear.
    "flex_attention_of_two_layers": {"layers.0", "layers.0.qkv", "layers.1", "layers.1.qkv", "layers.1.out", "head"},
    "half_of_the_memory": {"blocks.0", "blocks.0.norm", "blocks.1.up", "blocks.2.down", "head"},
    "none_of_the_memory": {"blocks.0", "blocks.0.norm", "blocks.1.up", "blocks.2.down", "head"},
}


@functools.cache
def torch_version():
    """PyTorch version of the Python that runs the programs."""
    code = "import importlib.metadata as packages; print(packages.version('torch'))"
    version = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout
    return [int(part) for part in version.split(".")[:2]]


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_memory_is_where_its_operations_are(memlab, case):
    if case.startswith("flex") and torch_version() <= [2, 8]:
        pytest.skip("this PyTorch cannot compile the gradient of a learned score")
    # GIVEN flex attention, or a partitioner that recomputes unsaved values in backward
    trace, out = run(memlab, case, PROGRAM)
    compiled = Compiled(trace)
    # WHEN lines and layers are compared with those of the kernels' source nodes
    known = check(compiled, out["truth"])
    # THEN all are known, and right
    assert known[True] > 0
    assert known[False] == 0
    assert CASES[case] <= {compiled.trace.layer_name(layer) for _, layer, _ in compiled.places}


def made_by_line(places, trace):
    """(text of the innermost line, layer) of the results and arguments of the program's own kernels."""
    lines = ((LINES[line - 1].strip(), layer) for (file, line), layer in places if file == str(PROGRAM))
    return {(text, trace.layer_name(layer)) for text, layer in lines if "torch.empty_like" in text or "BLOCK=" in text}


@pytest.mark.long
def test_memory_that_a_kernel_of_the_program_fills_belongs_to_the_line_that_makes_it(memlab):
    if torch_version() <= [2, 8]:
        pytest.skip("this PyTorch does not say which lines within an autograd function memory is for")
    # GIVEN a program with Triton kernels, eager and compiled
    eager = run(memlab, "eager_triton_kernels", PROGRAM)[0]
    compiled = Compiled(run(memlab, "triton_kernels", PROGRAM)[0])
    # WHEN the lines that made the kernels' results are compared
    found = made_by_line(((compiled.lines(frame)[-1], layer) for frame, layer, _ in compiled.places), compiled.trace)
    # THEN they are those of the eager program, in the same layers, forward and backward, and not the lines that call
    # kernels. Other results are in reused memory.
    assert found == {
        ("second = torch.empty_like(x)", "layers.0"),
        ("second = torch.empty_like(x)", "layers.1"),
        ("result = torch.empty_like(one)", "layers.1"),
    }
    assert found <= made_by_line(places_of(eager), Compiled(eager).trace)
    # AND the results of an operation with kernels belong to the line that calls it
    doubled = {
        compiled.trace.layer_name(layer)
        for frame, layer, _ in compiled.places
        if "doubled(" in LINES[compiled.lines(frame)[-1][1] - 1]
    }
    assert {"layers.0", "layers.1"} <= doubled


def places_of(path):
    """((file, line), layer) of the allocations of an eager program."""
    trace = Compiled(path).trace
    for event in trace.events:
        if event[0] == "a" and event[6]:
            yield trace.frames[trace.stacks[event[6]][1]][:2], event[7]


def held(memlab, case):
    """(rows of the lines of modules that hold memory, activations of each layer) of a run."""
    report = memlab.report(run(memlab, case, PROGRAM)[0])
    lines = {
        (row["line"], row["function"]): row["allocated_bytes"]
        for row in report["lines"]
        if row["file"] == str(PROGRAM) and row["function"].endswith(".forward")
    }
    activations = {
        row["name"]: row["activation_bytes"] for row in report["layers"] if row["root"] and row["activation_bytes"]
    }
    return lines, activations


@pytest.mark.long
def test_an_exported_program_has_the_lines_and_layers_of_its_model(memlab):
    # GIVEN a model, and its torch.export result, as one module and as modules
    eager_lines, eager_layers = held(memlab, "eager_blocks")
    assert eager_layers.keys() >= {"blocks.0", "blocks.0.norm", "blocks.1.up"}
    # WHEN each is run
    lines, layers = held(memlab, "exported_blocks")
    # THEN lines and layers hold the same
    assert lines == eager_lines
    assert layers == eager_layers
    # AND so do the layers of the modules that PyTorch interprets
    assert held(memlab, "unflattened_blocks")[1] == eager_layers
