"""`memlab.inspect`: forecasts a training's memory at other batch sizes from its model alone."""

import json
import sys
from pathlib import Path

import memlab as package
import pytest
import torch
from conftest import ROOT, full
from torch import nn

sys.path.insert(0, str(Path(__file__).parent / "programs"))
import inspected

PROGRAMS = Path(__file__).parent / "programs"

pytestmark = [pytest.mark.programs, pytest.mark.xdist_group("inspect")]

GIB = 1 << 30
IMPORTED = {"PYTHONPATH": ROOT / "python"}


class Failing(nn.Linear):
    def forward(self, rows):
        raise ArithmeticError("rows are never right")


class Wasteful(nn.Linear):
    """Takes 64 MiB more for large batches."""

    def forward(self, rows):
        scratch = rows.new_empty(16 << 20 if len(rows) >= 16 else 1)
        outputs = super().forward(rows)
        del scratch
        return outputs


@pytest.fixture(scope="module")
def linear():
    """The report of two large layers, one of them tied to a view."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.Linear(1024, 512, bias=False))
        model[1].weight = nn.Parameter(model[0].weight.detach()[:512])
    return package.inspect(model, torch.zeros(1, 1024), source="simulated", optimizer="sgd")


@pytest.mark.parametrize("case", ["tied", "gpt2", "inference", *full("accumulated", "scaled", "dict")])
def test_figures_are_those_of_a_run(memlab, case):
    # GIVEN a model without weights, and an example of one row
    make, batch_of, options = inspected.CASES[case]
    with torch.device("meta"):
        model = make()
    # WHEN it is inspected, with recordings of 2 and 4 rows
    report = package.inspect(model, batch_of(1), source="simulated", **options)
    # THEN its forecast for other batch sizes equals the training program's memory, to the byte
    commands = [(PROGRAMS / "inspected.py", case, batch) for batch in (3, 12)]
    runs = memlab.each(*commands, simgpu=("--card", "h100"), memory="79GiB")
    peaks = [report.peak(batch) for batch in (3, 12)]
    assert [[peak.allocated, peak.reserved] for peak in peaks] == runs


def test_a_report_has_categories_cards_and_settings(linear):
    # GIVEN two weights in one storage of 4 MiB; THEN the storage counts once, and the gradients separately
    peak = linear.peak(64)
    assert peak.categories["parameter"] == 4 << 20
    assert peak.categories["gradient"] == (4 << 20) + (2 << 20)
    assert sum(peak.categories.values()) == sum(peak.lines.values()) == sum(peak.layers.values()) == peak.allocated
    # AND the smallest card also has room for the context, and is one that fits
    assert peak.allocated + peak.context <= peak.needed <= peak.reserved + peak.context + peak.libraries
    assert linear.largest_batch(peak.needed) >= 64 > linear.largest_batch(peak.needed - (4 << 20))
    # AND cards have names and sizes
    assert 0 < linear.largest_batch("24GiB") == linear.largest_batch(24 * GIB) < linear.largest_batch("a100-40gb")
    assert linear.largest_batch(GIB // 2) == 0
    # AND the first settings are the current ones
    today, *others = linear.settings("24GiB")
    assert today.is_current and today.largest_batch == linear.largest_batch("24GiB")
    assert "expandable_segments:True" in [other.allocator for other in others]
    # AND it prints as a table, also in notebooks
    assert f"the largest batch is {linear.largest_batch()}" in str(linear)
    assert "<td>" in linear._repr_html_()
    with pytest.raises(ValueError, match="no card is called"):
        linear.peak(8, card="a101")
    with pytest.raises(ValueError, match="batch=0"):
        linear.peak(0)


@pytest.mark.long
def test_kernels_that_choose_otherwise_at_large_batches():
    # GIVEN a model that takes more memory from batch 16 on; WHEN it is inspected
    report = package.inspect(Wasteful(512, 512), torch.zeros(1, 512), source="simulated")
    # THEN a large batch has been recorded too, and nearby batches are forecast from it
    assert "recorded with batches 2, 4 and 32 on" in repr(report)
    assert report.peak(4).allocated < 64 << 20 < report.peak(30).allocated
    assert not any("far from" in warning for warning in report.peak(256).warnings)
    assert any("far from the recorded ones, 2, 4 and 32" in warning for warning in report.peak(257).warnings)


@pytest.mark.parametrize("case", ["dict", "gpt2", *full("scaled")])
def test_lines_are_the_models(case):
    # GIVEN a library's model, and models of a user module; WHEN they are inspected
    make, batch_of, options = inspected.CASES[case]
    peak = package.inspect(make(), batch_of(1), source="simulated", **options).peak(64)
    # THEN the lines are the model's, the innermost ones inside a library, and none is memlab's
    of_model = "transformers/" if case == "gpt2" else "inspected.py:"
    assert of_model in peak.line
    assert of_model in next(line for line in peak.lines if line != "(the model, put on the GPU)")
    assert not any("_inspection" in text for text in [peak.line, *peak.lines, *peak.warnings])
    assert {"(the training loop)", "(the model, put on the GPU)"} <= set(peak.lines)


def test_models_defined_in_the_main_program(memlab):
    # GIVEN a script that defines its model, loss and optimizer
    program = memlab.folder / "script.py"
    program.write_text("""if True:
        import sys, memlab, torch
        if sys.argv[1:]:
            sys.modules["cloudpickle"] = None
        print("the script runs")
        class Wide(torch.nn.Linear):
            def forward(self, rows):
                return super().forward(rows).relu()
        def loss(outputs, batch):
            return (outputs - batch[1]).square().mean()
        rows = torch.zeros(1, 1024), torch.zeros(1, 2048)
        sgd = lambda parameters: torch.optim.SGD(parameters, momentum=0.9)
        report = memlab.inspect(Wide(1024, 2048), rows, loss=loss, optimizer=sgd, source="simulated")
        print(report.peak(8).categories["optimizer_state"])
    """)
    # WHEN it is inspected; THEN inspect uses them without running the script again
    run = memlab.python(program, preload=False, env=IMPORTED)
    assert run.output.split("\n")[:2] == ["the script runs", str(4 * 1024 * 2048 + 4 * 2048)], run.errors
    # AND without cloudpickle, it explains the fix
    run = memlab.python(program, "without", preload=False, env=IMPORTED)
    assert run.code == 1
    assert "Wide is defined in the main program: install cloudpickle" in run.errors
    assert "`memlab plan -- python script.py --batch {batch}`" in run.errors


@pytest.mark.long
def test_on_the_gpu_that_is_there(memlab):
    # GIVEN a machine with a GPU; WHEN a model is inspected
    program = """if True:
        import json, memlab, torch
        report = memlab.inspect(torch.nn.Linear(1024, 1024), torch.zeros(1, 1024))
        print(json.dumps([str(report).split(";")[0], report.peak(8).categories["parameter"]]))
    """
    run = memlab.python("-c", program, preload=False, simgpu=("--card", "a100-40gb"), memory="40GiB", env=IMPORTED)
    # THEN the steps run on it
    assert run.code == 0, run.errors
    title, parameters = json.loads(run.output)
    assert title == "Linear, adamw, recorded with batches 2, 4 and 32 on NVIDIA A100-SXM4-40GB" and parameters == 1025 * 4096


def test_the_example(memlab):
    # GIVEN the example of docs/inspect.md; WHEN it asks about a small GPT and two cards
    small = ["--layers", 2, "--width", 128, "--heads", 4, "--context", 64, "--cards", "2GiB", "8GiB"]
    run = memlab.python(ROOT / "examples" / "plan_gpt.py", *small, preload=False, env=IMPORTED)
    # THEN the larger one fits a larger batch, and most memory belongs to lines of the example
    assert run.code == 0, run.errors
    _, smaller, larger = next(line for line in run.output.splitlines() if line.startswith("default")).rsplit(maxsplit=2)
    assert 0 < 2 * int(smaller) < int(larger)
    assert "plan_gpt.py:" in run.output and "train_gpt.py:" in run.output


def test_a_model_that_fails():
    # GIVEN a model that raises; WHEN it is inspected, THEN the error contains its output
    with pytest.raises(package.InspectionError, match="ArithmeticError: rows are never right"):
        package.inspect(Failing(4, 4), torch.zeros(1, 4), source="simulated")


def test_a_pytorch_without_cuda(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(package.InspectionError, match="this PyTorch is built without CUDA"):
        package.inspect(nn.Linear(4, 4), torch.zeros(1, 4))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": "rows"}, "has no tensor with rows in dimension 0"),
        ({"batch": torch.zeros(0, 4)}, "has no tensor with rows"),
        ({"optimizer": "adamm"}, "must be adamw, adam, sgd, adafactor"),
        ({"source": "cpu"}, "source='cpu'"),
        ({"accumulate": 0}, "accumulate=0: must be 1 or more"),
        ({"batches": (4, 4)}, "two different batch sizes"),
        ({"card": "a101"}, "no card is called"),
    ],
)
def test_wrong_arguments(options, said):
    options = {"batch": torch.zeros(1, 4), "source": "simulated"} | options
    with pytest.raises(ValueError, match=said):
        package.inspect(nn.Linear(4, 4), **options)


@pytest.mark.long
def test_a_config_takes_its_batch_from_it():
    # GIVEN a network, and a limit on the GPU; WHEN a Config is made, THEN its batch size is the report's largest batch
    network = nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1))
    config = package.Config(GIB, "1.5GiB", 1000, 4096, 1, network, "float32", "float32")
    report = package.inspect(network, torch.zeros(1, 4096))
    assert config.limited_by == "gpu_memory_limit" and config.batch_size == report.largest_batch("1.5GiB")


def test_counting():
    # GIVEN a network whose parameters and saved tensors can be counted by hand
    network = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 512), nn.ReLU())
    inspection = package.InspectNetwork(network, (1024,), source="simulated")
    # THEN the counts match: each ReLU's output, and the loss
    assert inspection.get_parameter_count() == 1024 * 2048 + 2048 + 2048 * 512 + 512
    assert inspection.get_intermediate_variable_count() == 2048 + 512 + 1
    # AND bytes grow with the batch, and the layers of the table are the network's
    assert inspection.bytes(1) < inspection.bytes(64) == inspection.report.peak(64).allocated
    assert {line.split()[-1] for line in inspection.table(64).splitlines()} >= {"0", "2"}
