"""Bugs and failures of the seed's `InspectNetwork` and `Config`: each is a test."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import memlab as package
import numpy as np
import pytest
import torch
from conftest import PYTHON
from torch import nn
from waiting import wait_until

sys.path.insert(0, str(Path(__file__).parent / "programs"))
import inspected

PROGRAMS = Path(__file__).parent / "programs"

pytestmark = pytest.mark.programs


class Pair(nn.Module):
    """Returns a nested tuple, as recurrent networks do."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(256, 512, batch_first=True)

    def forward(self, rows):
        outputs, (hidden, cell) = self.lstm(rows)
        return outputs, (hidden, cell)


class Named(nn.Linear):
    """Returns a dict that also contains non-floating-point tensors."""

    def forward(self, rows):
        scores = super().forward(rows)
        return {"scores": scores, "best": scores.argmax(-1), "name": "linear"}


def counted(network, input_shape, **options):
    return package.InspectNetwork(network, input_shape, source="simulated", **options)


def test_a_network_prints_its_parameters():
    # GIVEN a network of 20 parameters; THEN repr shows the count without planning
    assert repr(package.InspectNetwork(nn.Linear(4, 4), (4,))) == "<memlab.InspectNetwork: Linear of 20 parameters>"


def test_a_slow_plan_is_reported(monkeypatch, capsys):
    # GIVEN a plan that runs long without output, and then fails
    def plan(*arguments, **options):
        wait_until(lambda: said.append(capsys.readouterr().err) or "".join(said))
        return SimpleNamespace(returncode=1, stderr="memlab: no")

    said = []
    monkeypatch.setattr("memlab._inspection.recorded._SLOW_SECONDS", 0)
    monkeypatch.setattr("memlab._inspection.recorded.subprocess.run", plan)
    with pytest.raises(package.InspectionError):
        package.Config("1GiB", "1GiB", 10, (4,), (), nn.Linear(4, 4), "float32", "float32")
    # THEN one line reports the current work
    assert "".join(said).startswith("memlab: still recording the model: ") and "".join(said).count("\n") == 1


def test_intermediate_variables_are_those_of_one_sample():
    # GIVEN a network in half precision whose forward leaves 1 KiB for each sample; THEN that is 512 variables
    inspection = package.InspectNetwork(nn.Linear(4, 4).half(), (4,))
    inspection.report = SimpleNamespace(activation_bytes=lambda batch: 1024 * batch)
    assert inspection.get_intermediate_variable_count() == 512


@pytest.mark.long
def test_gradients_and_optimizer_states_count():
    # GIVEN weights of 16 MiB
    network = nn.Linear(2048, 2048, bias=False)
    weights = 4 * 2048 * 2048
    peaks = {name: counted(network, (2048,), optimizer=name).report.peak(2) for name in ("sgd", "adamw")}
    # THEN the figures include their gradients, and Adam's two averages and step counter for each
    for peak in peaks.values():
        assert peak.categories["parameter"] == peak.categories["gradient"] == weights
    assert peaks["adamw"].categories["optimizer_state"] >= 2 * weights
    assert "optimizer_state" not in peaks["sgd"].categories
    # AND a Config has room for fewer rows with them
    make = dict(
        cpu_memory_limit="1GiB", gpu_memory_limit="1GiB", total_sample_count=10**6, input_shape=2048, output_shape=()
    )
    make |= dict(network=network, input_dtype=np.float32, output_dtype=np.int64)
    sizes = [package.Config(**make, optimizer=name).batch_size for name in ("sgd", "adamw")]
    assert 0 < sizes[1] < sizes[0]


@pytest.mark.long
def test_containers_do_not_count_twice(capfd):
    # GIVEN the same layers in one container, and in nested containers
    layers = [nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU()]
    flat = counted(nn.Sequential(*layers), (512,))
    nested = counted(nn.Sequential(nn.Sequential(nn.Sequential(*layers[:2]), nn.Sequential(*layers[2:]))), (512,))
    # THEN their figures are the same
    for figure in ("get_parameter_count", "get_intermediate_variable_count"):
        assert getattr(flat, figure)() == getattr(nested, figure)() > 0
    assert flat.bytes(8) == nested.bytes(8)
    # AND nothing is printed
    assert capfd.readouterr() == ("", "")


@pytest.mark.long
@pytest.mark.parametrize("normalization", [nn.BatchNorm1d, nn.LayerNorm])
def test_normalization(normalization):
    # GIVEN a normalization over the batch, which cannot train with one row, and one over each row
    inspection = counted(nn.Sequential(nn.Linear(256, 1024), normalization(1024), nn.ReLU(), nn.Linear(1024, 1)), (256,))
    # THEN parameters are counted, and each sample's saved tensors: at most 1024 each of linear, normalization and ReLU
    assert inspection.get_parameter_count() == 257 * 1024 + 2 * 1024 + 1025
    assert 2 * 1024 <= inspection.get_intermediate_variable_count() <= 3 * 1024 + 2 * 1024 + 8
    assert inspection.bytes(64) > inspection.bytes(1)


@pytest.mark.long
def test_embeddings():
    # GIVEN a network with indices as input; WHEN it is inspected with an example, THEN it counts
    network = nn.Sequential(nn.Embedding(1000, 64), nn.Flatten(), nn.Linear(64 * 16, 8))
    inspection = counted(network, torch.zeros(1, 16, dtype=torch.long))
    assert inspection.get_parameter_count() == 64_000 + 64 * 16 * 8 + 8
    assert inspection.report.peak(32).categories["input"] == 32 * 16 * 8
    # AND a Config creates indices of the given types
    config = package.Config("1GiB", "1GiB", 100, 16, 8, network, np.int64, np.float32)
    assert config.batch_size > 0


@pytest.mark.long
@pytest.mark.parametrize(("network", "shape"), [(Pair(), (16, 256)), (Named(512, 512), (512,))])
def test_outputs_of_all_kinds(network, shape):
    # GIVEN a network that returns tuples or a dict; THEN it trains on all floating-point outputs
    inspection = counted(network, shape)
    peak = inspection.report.peak(8)
    assert 0.9 * peak.categories["parameter"] < peak.categories["gradient"] <= peak.categories["parameter"]
    assert inspection.bytes(64) > inspection.bytes(8)


@pytest.mark.long
def test_the_chosen_batch_fits_and_one_more_does_not(memlab):
    # GIVEN the largest batch for a card of 2 GiB
    make, batch_of, options = inspected.CASES["tied"]
    with torch.device("meta"):
        model = make()
    report = package.inspect(model, batch_of(1), source="simulated", card="2GiB", **options)
    largest = report.largest_batch()
    assert largest > 32
    # WHEN the training runs there; THEN that batch fits, and one more does not
    program = PROGRAMS / "inspected.py"
    runs = [
        memlab.run(PYTHON, program, "tied", batch, preload=False, simgpu=("--card", "h100"), memory="2GiB")
        for batch in (largest, largest + 1)
    ]
    assert runs[0].code == 0, runs[0].errors
    assert json.loads(runs[0].output)[0] == report.peak(largest).allocated
    assert "OutOfMemoryError" in runs[1].errors
