"""Memory belongs to the lines and layers of the program also in less usual ways to compile it."""

import pytest
from conftest import PROGRAMS
from test_compiled import Compiled, check, run

PROGRAM = PROGRAMS / "compiled_modes.py"

CASES = {
    # The layers that must be there.
    "flex_attention_of_two_layers": {"layers.0", "layers.0.qkv", "layers.1", "layers.1.qkv", "layers.1.out", "head"},
    "half_of_the_memory": {"blocks.0", "blocks.0.norm", "blocks.1.up", "blocks.2.down", "head"},
    "none_of_the_memory": {"blocks.0", "blocks.0.norm", "blocks.1.up", "blocks.2.down", "head"},
}


@pytest.mark.parametrize("case", CASES)
def test_memory_is_where_its_operations_are(memlab, case):
    # GIVEN flex attention, or a partitioner that computes in backward what it does not keep
    trace, out = run(memlab, case, PROGRAM)
    compiled = Compiled(trace)
    # WHEN lines and layers are compared with those of the nodes that kernels are made from
    known = check(compiled, out["truth"])
    # THEN all are known, and right
    assert known[True] > 0
    assert known[False] == 0
    assert CASES[case] <= {compiled.trace.layer_name(layer) for _, layer, _ in compiled.places}


def held(memlab, case):
    """(rows of the lines of modules that hold memory, activations of each layer) of a run."""
    report = memlab.report(run(memlab, case, PROGRAM)[0])
    lines = {
        (row["line"], row["function"]): row["allocated_bytes"]
        for row in report["lines"]
        if row["file"] == str(PROGRAM) and row["function"].endswith(".forward")
    }
    activations = {row["name"]: row["activation_bytes"] for row in report["layers"] if row["activation_bytes"]}
    return lines, activations


def test_an_exported_program_has_the_lines_and_layers_of_its_model(memlab):
    # GIVEN a model, and what torch.export makes of it, as one module and as modules
    eager_lines, eager_layers = held(memlab, "eager_blocks")
    assert eager_layers.keys() >= {"blocks.0", "blocks.0.norm", "blocks.1.up"}
    # WHEN each is run
    lines, layers = held(memlab, "exported_blocks")
    # THEN lines and layers hold the same
    assert lines == eager_lines
    assert layers == eager_layers
    # AND so do the layers of what PyTorch interprets
    assert held(memlab, "unflattened_blocks")[1] == eager_layers
