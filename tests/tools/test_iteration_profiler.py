"""`memlab.memory_profiler`: pytorch_mem_profiler's table and file, its corrected errors, and sums that agree with
PyTorch's."""

import copy
import csv
import json
import os
import pickle
import re
import subprocess
import types
from dataclasses import dataclass

import memlab
import pytest
import torch
from conftest import PYTHON, ROOT
from memlab.compat._iterations import table
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks

EITHER_WAY = pytest.mark.parametrize("preload", [True, False], ids=["preloaded", "loaded late"])

# The README's loop around its model, a recommender with user and item embeddings.
README = """
import sys
import json
import torch
from memlab import memory_profiler


class NeuMF(torch.nn.Module):
    def __init__(self, users, items):
        super().__init__()
        self.mf_user_embed = torch.nn.Embedding(users, 64)
        self.mf_item_embed = torch.nn.Embedding(items, 64)
        self.mlp_user_embed = torch.nn.Embedding(users, 128)
        self.mlp_item_embed = torch.nn.Embedding(items, 128)
        self.mlp = torch.nn.ModuleList([torch.nn.Linear(256, 256), torch.nn.Linear(256, 128), torch.nn.Linear(128, 64)])
        self.final = torch.nn.Linear(128, 1)

    def forward(self, user, item):
        mlp = torch.cat((self.mlp_user_embed(user), self.mlp_item_embed(item)), dim=1)
        for layer in self.mlp:
            mlp = torch.nn.functional.relu(layer(mlp))
        mf = self.mf_user_embed(user) * self.mf_item_embed(item)
        return torch.sigmoid(self.final(torch.cat((mf, mlp), dim=1)))


users, items, num_epochs = 20_000, 4_000, 2
loader = [(torch.zeros(512, dtype=torch.long), torch.zeros(512, dtype=torch.long))] * 11
model = NeuMF(users, items).cuda()
optimizer = torch.optim.Adam(model.parameters())
global profiler
profiler = memory_profiler(model, print_period=5, csv=True)

for epoch in range(num_epochs):
    for batch_index, batch_data in enumerate(loader):
        user, item = (part.cuda() for part in batch_data)
        optimizer.zero_grad()
        model(user, item).sum().backward()
        optimizer.step()
        profiler.record_stats()
    profiler.epoch_end()

print("counters", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), torch.cuda.memory_reserved())
print("names", json.dumps({name: parameter.nbytes for name, parameter in model.named_parameters()}))
print("file", profiler.path)
"""


@EITHER_WAY
def test_readme(memlab, preload):
    # GIVEN the README's loop; WHEN it runs
    program = memlab.folder / "program.py"
    program.write_text(README)
    done = memlab.python("-W", "error", program, preload=preload)
    assert done.code == 0, done.errors
    said = dict(line.split(" ", 1) for line in done.output.splitlines() if line.startswith(("counters", "names", "file")))
    weights, counters = json.loads(said["names"]), list(map(int, said["counters"].split()))

    # THEN each period has one table, in the README's form
    titles = re.findall(r"Memory Usage for Iteration (\d+) of Epoch (\d+)", done.output)
    assert titles == [("5", "1"), ("10", "1"), ("5", "2"), ("10", "2")]
    table = done.output.split("*" * 43 + "\n")[2]
    headings = [line.split("..")[0] for line in table.splitlines() if line and not line.startswith("  ")]
    assert [heading for heading in headings if heading not in ("Peak allocated", "All memory at the peak")] == [
        *("Peak cached", "Current cached", "Total feature map usage", "Total layer weight usage"),
        *("Total layer weight gradient usage", "Intermediate gradients", "Optimizer state"),
    ]
    assert all(len(line) == 43 for line in table.splitlines() if line)
    # and small layers have sizes too, in units that fit
    assert re.search(r"^  mlp_user_embed\.weight\.+9\.77 MiB$", table, re.M)
    assert re.search(r"^  final\.bias\.+4 B$", table, re.M)
    assert re.search(r"^  final\.bias grad\.+4 B$", table, re.M)

    # and the file has the README's columns, named by the time, in bytes
    path = memlab.folder / said["file"]
    assert re.fullmatch(r"\d{14}\.csv", path.name) and path.parent == memlab.folder / "memory_csv_data"
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["epoch"], row["iteration"]) for row in rows] == [("1", "5"), ("1", "10"), ("2", "5"), ("2", "10")]
    names = list(weights)
    assert list(rows[0])[: 9 + 2 * len(names)] == [
        *("epoch", "iteration", "peak_allocated", "peak_cached", "current_cached", "total_activation_usage"),
        *("total_weight_usage", *names, "total_gradient_usage", *(f"{name}_grad" for name in names), "intermediate_grads"),
    ]
    last = {column: int(value) for column, value in rows[-1].items()}
    assert [last["peak_allocated"], last["peak_cached"], last["current_cached"]] == counters
    assert {name: last[name] for name in names} == weights
    assert {name: last[f"{name}_grad"] for name in names} == weights  # Although gradients are None before backward.
    assert last["total_weight_usage"] == last["total_gradient_usage"] == sum(weights.values())
    assert last["total_optimizer_state_usage"] == 2 * sum(weights.values())
    assert last["total_activation_usage"] == sum(value for name, value in last.items() if name.endswith("_activation"))


@EITHER_WAY
def test_feature_maps_and_peak(memlab, preload):
    # GIVEN training of a transformer built from its configuration, with a known start and peak
    program = memlab.folder / "program.py"
    program.write_text("""
import json, sys, torch, memlab
from transformers import BertConfig, BertModel
model = BertModel(BertConfig(num_hidden_layers=3, hidden_size=64, num_attention_heads=4, intermediate_size=128)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
ids = torch.zeros(8, 128, dtype=torch.long, device="cuda")
sys.stdout = sys.stderr
with memlab.memory_profiler(model) as profiler:
    for _ in range(2):
        optimizer.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        out = model(input_ids=ids)
        before_backward = {block.layer: 0 for block in memlab.tracker.live_blocks()}
        for block in memlab.tracker.live_blocks():
            if block.category == "activation":
                before_backward[block.layer] += block.nbytes
        out.last_hidden_state.sum().backward()
        del out
        optimizer.step()
        peak = torch.cuda.max_memory_allocated()
        profiler.record_stats()
sys.stdout = sys.__stdout__
print(json.dumps([vars(profiler.last), peak, {name: size for name, size in before_backward.items() if size}]))
""")
    done = memlab.python(program, preload=preload)
    assert done.code == 0, done.errors
    row, peak, before_backward = json.loads(done.output)

    # WHEN an iteration is measured, THEN its feature maps are the activations saved for backward, by layer
    assert row["feature_maps"] == before_backward
    assert {"encoder.layer.0.attention.self", "encoder.layer.2.output.LayerNorm"} <= set(before_backward)
    # and all layers at the peak sum to PyTorch's peak of the iteration
    assert sum(row["at_peak"].values()) == peak == row["peak_allocated"]
    assert 0 < row["intermediate_gradients"] < peak


# On the CPU, in this process: hooks instead of the tracker. ---------------------------------------------------------------


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.BatchNorm1d(256), nn.Linear(256, 8))


def train(model, batch=32, optimizer=None):
    model(torch.ones(batch, 64)).sum().backward()
    if optimizer is not None:
        optimizer.step()
    model.zero_grad(set_to_none=True)


def test_gradients_that_are_gone(model, capsys):
    # GIVEN a loop that sets gradients to None before it records
    with memlab.memory_profiler(model) as profiler:
        train(model)
        profiler.record_stats()

    # WHEN it records, THEN each parameter has its gradient's bytes
    assert profiler.last.gradients == {name: parameter.nbytes for name, parameter in model.named_parameters()}


def test_gradients_that_the_optimizer_takes_in_backward(model, capsys):
    # GIVEN an optimizer that steps inside backward and drops gradients at once; WHEN recorded, THEN gradients are seen
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda ready: setattr(ready, "grad", None))
    with memlab.memory_profiler(model) as profiler:
        train(model)
        profiler.record_stats()
    assert profiler.last.gradients == {name: parameter.nbytes for name, parameter in model.named_parameters()}


def test_gradients_of_frozen_and_sparse_parameters(capsys):
    # GIVEN a frozen layer and an embedding with sparse gradients
    model = nn.Sequential(nn.Embedding(1000, 16, sparse=True), nn.Linear(16, 4))
    model[1].weight.requires_grad_(False)

    # WHEN recorded, THEN the frozen one has none, and the sparse one the bytes of indices and values
    with memlab.memory_profiler(model) as profiler:
        model(torch.tensor([1, 2, 3])).sum().backward()
        profiler.record_stats()
    assert profiler.last.gradients == {"0.weight": 3 * 8 + 3 * 16 * 4, "1.weight": 0, "1.bias": 16}


def test_feature_maps_are_those_of_one_iteration(model, capsys):
    # GIVEN iterations of different sizes; WHEN each is recorded, THEN each has its own feature maps, not the sum
    profiler = memlab.memory_profiler(model)
    seen = []
    for batch in (32, 8, 32):
        train(model, batch)
        profiler.record_stats()
        seen.append(sum(profiler.last.feature_maps.values()))
    profiler.close()
    assert seen[0] == seen[2] == 4 * seen[1]

    # and they are the tensors alive at the end of the forward: autograd has dropped the output of the first linear layer
    assert profiler.last.feature_maps == {"1": 32 * 256 * 4, "2": 32 * 256 * 4, "3": 32 * 8 * 4}


@dataclass
class Outputs:
    first: torch.Tensor
    others: dict


class Nested(nn.Module):
    """Returns tensors in a dataclass, a dictionary and tuples, and a None among them."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.lstm = nn.LSTM(16, 16, batch_first=True)

    def forward(self, x):
        attended, _ = self.attention(x, x, x, need_weights=False)
        out, state = self.lstm(attended)
        return Outputs(out, {"state": state, "nothing": None, "list": [attended]})


def test_outputs_of_all_kinds(capsys):
    # GIVEN a model whose outputs are nested, and an input that needs no gradient; WHEN trained, THEN all of them are counted
    model = Nested()
    with memlab.memory_profiler(model) as profiler:
        for _ in range(2):
            out = model(torch.ones(4, 8, 16))
            out.first.sum().backward()
            profiler.record_stats()
    # the attention's result, and the LSTM's output with its two states
    assert profiler.last.feature_maps["attention"] == 4 * 8 * 16 * 4
    assert profiler.last.feature_maps["lstm"] == (4 * 8 + 4 + 4) * 16 * 4
    assert profiler.last.intermediate_gradients > 0


def test_weights_input_and_views_are_no_feature_maps(capsys):
    # GIVEN layers that return their input, a view of it, or a weight; WHEN run, THEN none of these is a feature map
    class Weight(nn.Linear):
        def forward(self, x):
            return self.weight

    model = nn.Sequential(nn.Identity(), nn.Flatten(), Weight(4, 4))
    with memlab.memory_profiler(model) as profiler:
        model(torch.ones(2, 4))
        profiler.record_stats()
    assert profiler.last.feature_maps == {}


def test_optimizer_state_and_buffers(model, capsys):
    # GIVEN two optimizers of the model's parameters and one of another model
    optimizers = [
        torch.optim.Adam(model[0].parameters()),
        torch.optim.SGD(model[3].parameters(), momentum=0.9),
    ]
    other = nn.Linear(999, 999)
    stranger = torch.optim.Adam(other.parameters())
    with memlab.memory_profiler(model) as profiler:
        other(torch.ones(1, 999)).sum().backward()
        stranger.step()
        model(torch.ones(32, 64)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        profiler.record_stats()

    # WHEN recorded, THEN the state of the two counts, and buffers are named
    weights = {name: parameter.nbytes for name, parameter in model.named_parameters()}
    adam = 2 * (weights["0.weight"] + weights["0.bias"]) + 2 * 4  # Two moments and a counter of steps for each.
    assert profiler.last.optimizer_state == adam + weights["3.weight"] + weights["3.bias"]
    assert profiler.last.buffers == {"2.running_mean": 1024, "2.running_var": 1024, "2.num_batches_tracked": 8}


def test_one_row_per_period(model, capsys):
    # GIVEN a period of 3 and epochs of 7 iterations; WHEN trained, THEN iterations 3 and 6 of each epoch have a row
    profiler = memlab.memory_profiler(model, print_period=3)
    for _ in range(2):
        for _ in range(7):
            train(model)
            profiler.record_stats()
        profiler.epoch_end()
    profiler.close()
    titles = re.findall(r"Iteration (\d+) of Epoch (\d+)", capsys.readouterr().out)
    assert titles == [("3", "1"), ("6", "1"), ("3", "2"), ("6", "2")]


def hooks_of(model):
    """All hooks on a model or on optimizers."""
    modules = [(m._forward_hooks, m._forward_pre_hooks, m._backward_hooks) for m in model.modules()]
    parameters = [getattr(p, "_post_accumulate_grad_hooks", None) for p in model.parameters()]
    return [
        sum(len(hooks) for group in modules for hooks in group),
        sum(len(hooks or ()) for hooks in parameters),
        len(_global_optimizer_post_hooks),
    ]


@pytest.mark.parametrize("how", ["close", "with", "error"])
def test_hooks_are_removed(model, how, capsys):
    # GIVEN a profiled model; WHEN the profiler is closed, or its block left, also by an exception
    before = hooks_of(model)
    profiler = memlab.memory_profiler(model)
    assert hooks_of(model) != before
    if how == "close":
        profiler.close()
        profiler.close()
    elif how == "with":
        with profiler:
            train(model)
    else:
        with pytest.raises(KeyError), profiler:
            raise KeyError

    # THEN no hook is left, and further recording reports that the profiler is closed
    assert hooks_of(model) == before
    with pytest.raises(RuntimeError, match="closed"):
        profiler.record_stats()


@pytest.mark.parametrize("period", [0, -3, 2.5, None])
def test_wrong_period(model, period):
    # GIVEN an invalid period; WHEN a profiler is created, THEN the error names a valid one, and the process continues
    with pytest.raises(ValueError, match="give 1 to print every iteration"):
        memlab.memory_profiler(model, print_period=period)
    assert hooks_of(model)[:2] == [0, 0]


def test_wrong_model():
    # GIVEN no model; WHEN a profiler is created, THEN the error names the expected argument
    with pytest.raises(TypeError, match=r"memlab\.memory_profiler takes a model"):
        memlab.memory_profiler([nn.Linear(2, 2)])


def test_copies_and_files_of_the_model(model, capsys):
    # GIVEN a profiled model; WHEN it is copied and saved, THEN the copies compute as it does, without its hooks' work
    with memlab.memory_profiler(model) as profiler:
        model.eval()
        expected = model(torch.ones(2, 64))
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(other(torch.ones(2, 64)), expected)
        profiler.record_stats()


def test_profiler_keeps_nothing_alive(model, capsys):
    # GIVEN a profiler whose model and outputs are dropped; WHEN it records, THEN they are freed and nothing is raised
    import gc
    import weakref

    profiler = memlab.memory_profiler(model)
    out = model(torch.ones(2, 64))
    profiler.record_stats()
    seen = [weakref.ref(out), weakref.ref(model[0].weight)]
    layers = nn.Sequential(nn.Linear(4, 4))
    second = memlab.memory_profiler(layers)
    seen.append(weakref.ref(layers[0].weight))
    del layers, out
    gc.collect()
    assert [reference() is None for reference in seen] == [True, False, True]
    second.record_stats()
    assert second.last.weights == {}
    second.close()
    profiler.close()


def test_two_files_in_one_second(model, tmp_path, monkeypatch, capsys):
    # GIVEN two profilers created in one second; WHEN both write files, THEN each has its own
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(table, "time", types.SimpleNamespace(strftime=lambda form: "20261128120000"))
    profilers = [memlab.memory_profiler(model, csv=True) for _ in range(2)]
    train(model)
    for profiler in profilers:
        profiler.record_stats()
        profiler.close()
    paths = [profiler.path for profiler in profilers]
    assert [path.name for path in paths] == ["20261128120000.csv", "20261128120000_2.csv"]
    assert all(len(path.read_text().splitlines()) == 2 for path in paths)


def test_compiled_model(model, capsys):
    # GIVEN a compiled model; WHEN it is trained under the profiler, THEN weights and gradients are as without compiling
    compiled = torch.compile(model, backend="eager")
    with memlab.memory_profiler(model) as profiler:
        train(compiled)
        profiler.record_stats()
    assert profiler.last.gradients == profiler.last.weights


def test_without_cuda():
    # GIVEN no CUDA device; WHEN a profiler is used, THEN one line reports it and the table has the known figures
    program = """
import torch, memlab
model = torch.nn.Linear(256, 256)
profiler = memlab.memory_profiler(model)
model(torch.ones(4, 256)).sum().backward()
profiler.record_stats()
"""
    environment = {"PYTHONPATH": f"{ROOT}/python", "CUDA_VISIBLE_DEVICES": "", "PATH": os.environ["PATH"]}
    done = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, env=environment)
    assert "Peak cached.............................0 B\n" in done.stdout
    assert re.search(r"^  weight grad\.+256 KiB$", done.stdout, re.M)
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("memlab: ")
