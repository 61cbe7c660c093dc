"""Loads weights from safetensors files directly into the memory from which they are paged."""

import json
import os
import subprocess
import sys

import memlab
import pytest
import torch
from conftest import ROOT
from paging.small import mlp, same
from paging.zoo import ZOO, build, call
from safetensors.torch import save_file
from torch import nn


@pytest.fixture(autouse=True)
def one_thread_and_seed():
    torch.set_num_threads(1)
    torch.manual_seed(0)


def skeleton(name):
    with memlab.skeleton():
        return ZOO[name].model().eval()


def untied(model):
    """A state dict for safetensors: one tensor of each tied set, each in separate memory."""
    seen, state = set(), {}
    for key, value in model.state_dict().items():
        if value.data_ptr() not in seen or value.numel() == 0:
            seen.add(value.data_ptr())
            state[key] = value.clone().contiguous()
    return state


@pytest.mark.parametrize("name", ["resnet101", "vit", "tied", "mixed", "recurrent", "gpt2", "llama", "t5"])
def test_a_model_without_memory(name, tmp_path):
    # GIVEN a file of a model's weights, and the same model created without memory
    twin = build(name)
    save_file(untied(twin), tmp_path / "model.safetensors")
    model = skeleton(name)
    assert all(parameter.is_meta for parameter in model.parameters())
    # WHEN it is loaded, THEN its results equal those of the other
    assert memlab.load(tmp_path / "model.safetensors", model, "cpu", budget="min") is model
    for _ in range(4):
        inputs = ZOO[name].inputs()
        assert same(call(model, inputs), call(twin, inputs))
    # AND it can be unpaged and used like any other model
    memlab.unpage(model)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True))


class Twice(nn.Module):
    """Registers one Parameter under two names, beside another of the same shape."""

    def __init__(self):
        super().__init__()
        shared = nn.Parameter(torch.randn(64, 64), requires_grad=False)
        shared.note = "kept"
        self.first, self.second, self.other = shared, shared, nn.Parameter(torch.randn(64, 64))

    def forward(self, x):
        return (x @ self.first).sin() @ self.second + x @ self.other


def test_a_parameter_of_two_names_is_one_in_a_skeleton(tmp_path):
    # GIVEN a model that registers one Parameter twice; WHEN it is created without memory
    twin = Twice()
    with memlab.skeleton():
        model = Twice()
    # THEN both names refer to one Parameter, with its attributes
    assert model.first is model.second and model.first is not model.other
    assert [name for name, _ in model.named_parameters()] == ["first", "other"]
    assert (model.first.note, model.first.requires_grad, model.other.requires_grad) == ("kept", False, True)
    # AND it remains one when its weights are loaded
    save_file(untied(twin), tmp_path / "model.safetensors")
    memlab.load(tmp_path, model, "cpu", budget="min")
    assert model.first is model.second and model.memlab.host_bytes == 2 * 64 * 64 * 4
    x = torch.randn(3, 64)
    for _ in range(4):
        assert same(call(model, (x,)), call(twin, (x,)))


def test_several_files(tmp_path):
    # GIVEN weights in several files with an index, the format of large models
    twin = mlp()
    state = untied(twin)
    where = {key: f"model-{index % 3 + 1:05}-of-00003.safetensors" for index, key in enumerate(state)}
    for file in set(where.values()):
        save_file({key: value for key, value in state.items() if where[key] == file}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    x = torch.randn(3, 64)
    for path in (index, tmp_path, str(tmp_path)):
        # WHEN the index, or the folder, is loaded, THEN every weight is loaded
        with torch.device("meta"):
            model = mlp()
        memlab.load(path, model, "cpu")
        assert same(call(model, (x,)), call(twin, (x,)))


def test_types(tmp_path):
    # GIVEN a bfloat16 file for a float32 model
    twin = mlp().bfloat16()
    save_file(untied(twin), tmp_path / "model.safetensors")
    x = torch.randn(3, 64)
    # WHEN it is loaded, THEN the weights have the file's type, unless another is given
    assert same(call(memlab.load(tmp_path, mlp(), "cpu"), (x.bfloat16(),)), call(twin, (x.bfloat16(),)))
    assert same(call(memlab.load(tmp_path, mlp(), "cpu", dtype=torch.float32), (x,)), call(twin.float(), (x,)))


def test_errors(tmp_path):
    state = untied(mlp())
    path = tmp_path / "model.safetensors"

    def loading(changed, model=None, **options):
        save_file(changed, path)
        return memlab.load(path, mlp() if model is None else model, "cpu", **options)

    # GIVEN files that do not match the model, THEN the error names the weights
    with pytest.raises(KeyError, match=r"missing in the file: 3\.bias, 3\.weight"):
        loading({key: value for key, value in state.items() if not key.startswith("3.")})
    with pytest.raises(KeyError, match=r"in the file but not in the model: more"):
        loading(state | {"more": torch.zeros(1)})
    with pytest.raises(KeyError, match=r"in the file but not in the model: a, b, c, d, e and 2 more\."):
        loading(state | {name: torch.zeros(1) for name in "abcdefg"})
    with pytest.raises(ValueError, match=r"2\.weight: the model has \(64, 64\), the file \(64, 32\)"):
        loading(state | {"2.weight": torch.zeros(64, 32)})
    # AND the mismatch can be allowed
    model = loading(state | {"more": torch.zeros(1)}, strict=False)
    assert call(model, (torch.randn(1, 64),)).shape == (1, 64)
    with pytest.raises(RuntimeError, match="paged or chunked already"):
        loading(state, model)

    # GIVEN a buffer without memory that no file contains
    class Buffered(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)
            self.register_buffer("frequencies", torch.ones(4), persistent=False)

    with torch.device("meta"):
        model = Buffered()
    with pytest.raises(ValueError, match=r"frequencies is on the meta device.*skeleton"):
        loading(untied(nn.Linear(4, 4)), model)
    # GIVEN invalid files
    for content, what in ((b"", "model.safetensors"), (b"\xff" * 64, "model.safetensors")):
        path.write_bytes(content)
        with pytest.raises((ValueError, OSError), match=what):
            memlab.load(path, mlp(), "cpu")
    with pytest.raises(FileNotFoundError):
        memlab.load(tmp_path / "nowhere.safetensors", mlp(), "cpu")


PEAK = """
import sys, torch, memlab
from torch import nn
torch.set_num_threads(1)
def peak():
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = peak()
with memlab.skeleton():
    model = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(24)))
memlab.load(sys.argv[1], model, "cpu", budget="min")
print(peak() - before)
"""


def test_the_host_holds_the_weights_once(tmp_path):
    # GIVEN 384 MiB of weights in a file
    layers = {f"{index}.weight": torch.randn(2048, 2048) for index in range(24)}
    weights = sum(tensor.nbytes for tensor in layers.values())
    save_file(layers, tmp_path / "model.safetensors")
    # WHEN a program loads them
    env = os.environ | {"PYTHONPATH": str(ROOT / "python")}
    command = [sys.executable, "-c", PEAK, tmp_path / "model.safetensors"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    # THEN its memory grows by their size, and by little more
    assert weights <= int(done.stdout) + (8 << 20) and int(done.stdout) < 1.15 * weights
