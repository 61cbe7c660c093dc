"""Third-party models under torch.compile, in mixed precision: timm's and Hugging Face's."""

from collections import Counter
from pathlib import Path

import pytest
from conftest import full
from test_compiled import Compiled, check, run, states

PROGRAMS = Path(__file__).parent / "programs"

PROGRAM = PROGRAMS / "compiled_models.py"


@pytest.mark.long
@pytest.mark.parametrize("model", ["vit", *full("resnet", "gpt2", "llama")])
def test_a_model_is_as_without_the_compiler(memlab, model):
    # GIVEN training runs of a model, eager and compiled
    eager, _ = run(memlab, f"{model}/eager", PROGRAM)
    trace, out = run(memlab, f"{model}/compiled", PROGRAM)
    compiled, report = Compiled(trace), memlab.report(trace)
    # THEN Inductor's own data about its kernels allow all lines and layers, AND at most a small share is unknown or has only
    # an enclosing layer
    known = check(compiled, out["truth"])
    assert known[False] <= known.total() / 100, known
    assert known["around"] <= known.total() / 50, known
    # AND each layer has the same parameters, gradients, optimizer state and buffers
    whole = memlab.report(eager)
    assert states(report) == states(whole)
    assert sum(row["live_bytes_at_end"] for row in report["lines"]) == out["allocated"]
    # AND activations are in named layers, except for those of the model itself
    assert outside(report) <= outside(whole) + 0.01


def outside(report):
    """The share of activations in no named layer."""
    activations = Counter()
    for row in report["layers"]:
        activations[bool(row["root"] and row["name"])] += row["activation_bytes"]
    return activations[False] / activations.total()
