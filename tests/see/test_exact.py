"""memlab's figures equal PyTorch's own, to the byte."""

import json
from collections import Counter
from pathlib import Path

import pytest
from conftest import ROOT, Memlab
from trace_reader import BACKWARD, Trace

PROGRAMS = Path(__file__).parent / "programs"

pytestmark = [pytest.mark.programs, pytest.mark.xdist_group("exact")]

MODELS = ["gpt2", "mlp", "cnn", "lstm", "attention", "two_devices"]


@pytest.fixture(params=MODELS, scope="module")
def trained(request, tmp_path_factory):
    """GIVEN a model trained for a few steps under memlab, recorded by PyTorch's own recorder at the same time."""
    memlab = Memlab(tmp_path_factory.mktemp("exact"))
    if request.param == "gpt2" and memlab.python("-c", "import transformers", preload=False).code != 0:
        pytest.skip("this environment has no transformers")
    devices = 2 if request.param == "two_devices" else 1
    run = memlab.python(PROGRAMS / "exact.py", request.param, memlab.folder / "truth.json", devices=devices)
    if "simgpu has no recurrent networks of cuDNN 8" in run.errors:
        pytest.skip("the simulated GPU runs recurrent networks of cuDNN 9 alone")
    assert run.code == 0, run.errors
    assert "memlab:" not in run.errors
    truth = json.loads((memlab.folder / "truth.json").read_text())
    return truth, Trace(run.trace), memlab.report(run.trace)


def test_totals_lines_and_names(trained):
    truth, trace, report = trained

    # THEN allocated, reserved and peak equal PyTorch's at every moment
    for moment in truth["moments"]:
        then, device = trace.at(moment["unix_ns"]), moment["device"]
        assert then.allocated(device) == moment["allocated"]
        assert then.reserved(device) == moment["reserved"]
        assert then.peak[device] == moment["peak"]

    # AND so do the report's at the end
    last = {moment["device"]: moment for moment in truth["moments"]}
    assert len(report["devices"]) == len(last)
    for device in report["devices"]:
        expected = last[device["index"]]
        assert device["allocated_bytes"] == expected["allocated"]
        assert device["reserved_bytes"] == expected["reserved"]
        assert device["peak_allocated_bytes"] == expected["peak"]

    # AND live bytes by line equal those of PyTorch's snapshot, which has no lines for backward's blocks
    lines = report["lines"]
    from_forward = Counter()
    for line in lines:
        key = f"{line['file']}:{line['line']}" if line["file"] else "none"
        from_forward[key] += line["live_bytes_at_end"] - line["backward_bytes_at_end"]
    expected = Counter(truth["lines"])
    without_a_line = expected.pop("none", 0)
    assert +from_forward == +expected
    assert sum(line["backward_bytes_at_end"] for line in lines) == without_a_line

    # AND backward's blocks have a line and a layer
    for block in trace.at().blocks.values():
        if block.phase == BACKWARD:
            assert trace.line(block.stack) is not None
            assert trace.layer_name(block.layer) is not None

    # AND lines, layers and categories sum to the allocated bytes
    for device in report["devices"]:
        mine = [line for line in lines if line["device"] == device["index"]]
        assert sum(line["live_bytes_at_end"] for line in mine) == device["allocated_bytes"]
        assert sum(line["live_bytes_at_peak"] for line in mine) == device["peak_allocated_bytes"]

    # AND parameters, gradients and optimizer state have their names
    by_layer = {key: Counter() for key in ("parameter_bytes", "gradient_bytes", "optimizer_state_bytes")}
    for layer in report["layers"]:
        for key, bytes_by_name in by_layer.items():
            bytes_by_name[layer["name"]] += layer[key]
    for key, of_tensor in zip(by_layer, (truth["parameters"], truth["gradients"], truth["states"]), strict=True):
        expected = Counter()
        for name, size in of_tensor.items():
            expected[name.rpartition(".")[0]] += size
        assert +by_layer[key] == +expected, key


def test_the_categories_sum_to_the_device(trained):
    _, _, report = trained
    for device in report["devices"]:
        mine = [category for category in report["categories"] if category["device"] == device["index"]]
        # THEN the categories sum to the bytes that the driver reports as used
        assert sum(category["bytes_at_end"] for category in mine) == device["used_bytes"]
        # AND those inside PyTorch's allocator sum to the reserved bytes
        outside = {"context", "other_processes", "workspace"}
        inside = sum(category["bytes_at_end"] for category in mine if category["name"] not in outside)
        assert inside <= device["reserved_bytes"]
        # AND memory that the driver reserves, which NVML may count as used, is not attributed to another process
        (others,) = (category["bytes_at_end"] for category in mine if category["name"] == "other_processes")
        assert others == 0


@pytest.mark.parametrize(("env", "tool"), [({}, "cuda"), ({"SIMGPU_OLD_NVML": 1}, "nvml")])
def test_used_memory_equals_cudas(memlab, env, tool):
    # GIVEN a program that holds its memory and asks CUDA and NVML for the card's used memory, with an NVML that reports the
    # driver's reserved memory separately, or one that does not
    program = ROOT / "benches" / "on_gpu" / "programs" / "held.py"
    run = memlab.python(PROGRAMS / "patient.py", program, env=env)
    if "has no attribute 'pci_domain_id'" in run.errors:
        pytest.skip("this PyTorch does not tell where the device is")
    assert run.code == 0, run.errors
    said = json.loads(run.output)
    assert said["nvml"] > said["cuda"] == said.get("nvml_v2", said["cuda"])
    # THEN memlab reports the same
    (device,) = memlab.report(run.trace)["devices"]
    assert device["used_bytes"] == said[tool]


def test_an_out_of_memory_event_has_pytorchs_counts(memlab):
    # GIVEN a program that runs out of memory, and reads PyTorch's counters at that moment
    run = memlab.python(PROGRAMS / "exhausted.py")
    assert run.code == 0, run.errors
    counted = json.loads(run.output)
    assert all(reserved > allocated > 0 for _, allocated, reserved in counted)
    assert len({tuple(counts) for counts in counted}) == 3
    # THEN the trace has the same requested, allocated and reserved bytes
    assert [event[4:7] for event in Trace(run.trace).events if event[0] == "oom"] == counted
    # AND so has the report
    ooms = memlab.report(run.trace)["ooms"]
    assert [[oom["requested_bytes"], oom["allocated_bytes"], oom["reserved_bytes"]] for oom in ooms] == counted
