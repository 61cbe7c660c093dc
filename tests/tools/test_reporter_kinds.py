"""`memlab.MemReporter` on tensors of all kinds, and on objects that only seem to be tensors.

Runs on the CPU, in this process. Other tests' tensors can appear too: rows are found by name.
"""

import gc
import subprocess
import sys
import warnings
import weakref

import pytest
import torch
from memlab import MemReporter
from memlab.compat._tensors.live_tensors import LiveTensors
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8], ids=str)
def test_bytes_are_those_of_the_type(rows, dtype):
    # GIVEN buffers of a type; WHEN reported, THEN their bytes are the elements times the type's size, under the buffer's
    # name
    model = nn.Module()
    model.register_buffer("table", torch.zeros(1024, 1024, dtype=dtype))
    assert rows(MemReporter(model))["table"].nbytes == 1024 * 1024 * dtype.itemsize


def test_views_share_the_memory_of_their_base(rows):
    # GIVEN a parameter, views of it, and a base that only a view keeps
    model = nn.Linear(64, 64, bias=False)
    view, none = model.weight.detach()[1:], model.weight.detach()[:0]
    reporter = MemReporter(model)

    # WHEN they are reported
    table = reporter.collect("cpu").devices["cpu"]

    # THEN their memory is counted once, with the base
    sharing = [row for row in table.tensors if row.shares == "weight"]
    assert sorted(row.shape for row in sharing) == ["(0, 64)", "(63, 64)"]
    assert all(row.nbytes == 0 for row in sharing)
    assert any(line.startswith(f"{sharing[0].name}(->weight) ") for line in table.text(verbose=True).splitlines())
    assert not any("(->" in line for line in table.text().splitlines())
    assert (view.numel(), none.numel()) == (63 * 64, 0)


def test_view_keeps_its_base(rows):
    # GIVEN one row of a table that nothing else holds; WHEN reported, THEN it counts for the whole table
    model = nn.Module()
    model.register_buffer("row", torch.zeros(100, 1000)[0])
    row = rows(MemReporter(model))["row"]
    assert (row.shape, row.elements, row.nbytes) == ("(1000,)", 1000, 400_384)


def odd_tensors():
    """Tensors of all kinds, and their rows."""
    fake = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.zeros(4, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "meta": (torch.zeros(5, device="meta"), {"meta": (0, "meta")}),
            "fake": (fake, {"fake": (0, "meta")}),
            "coo": (torch.eye(8).to_sparse(), {"coo.indices": (512, "cpu"), "coo.values": (512, "cpu")}),
            "csr": (
                torch.eye(8).to_sparse_csr(),
                {f"csr.{part}": (512, "cpu") for part in ("crow_indices", "col_indices", "values")},
            ),
            "quantized": (
                torch.quantize_per_channel(torch.zeros(4, 1024), torch.ones(4), torch.zeros(4), 0, torch.qint8),
                {"quantized": (4096, "cpu"), "quantized.scales": (512, "cpu"), "quantized.zero_points": (512, "cpu")},
            ),
            "ragged": (torch.nested.nested_tensor([torch.zeros(100), torch.zeros(156)]), {"ragged": (1024, "cpu")}),
            "jagged": (
                torch.nested.nested_tensor([torch.zeros(100, 1), torch.zeros(156, 1)], layout=torch.jagged),
                {"jagged.values": (1024, "cpu"), "jagged.offsets": (512, "cpu")},
            ),
            "lazy": (nn.LazyLinear(3).weight, {}),
            "mkldnn": (torch.zeros(16, 16).to_mkldnn(), {"mkldnn": (1024, "cpu")}),
            "subclass": (torch.zeros(256).as_subclass(Strict), {"subclass": (1024, "cpu")}),
            "without_storage": (torch._efficientzerotensor(4), {"without_storage": (0, "cpu")}),
            "functional": (torch._to_functional_tensor(torch.zeros(6)), {"functional": (0, "cpu")}),
            "conjugate": (torch.zeros(64, dtype=torch.complex64).conj(), {"conjugate": (512, "cpu")}),
        }


class MadeWhenAskedFor(torch.Tensor):
    """A wrapper whose parts are created at the first access."""

    @staticmethod
    def __new__(cls, like):
        return torch.Tensor._make_wrapper_subclass(cls, like.size(), dtype=like.dtype)

    def __init__(self, like):
        self.like = like.numel()

    first = property(lambda self: torch.zeros(self.like))
    second = property(lambda self: torch.ones(self.like))

    def __tensor_flatten__(self):
        return ["first", "second"], None

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), named=None):
        raise RuntimeError("not supported")


class Strict(torch.Tensor):
    """A subclass that refuses every operation."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        raise RuntimeError("not supported")


KINDS = ["meta", "fake", "coo", "csr", "quantized", "ragged", "jagged", "lazy", "mkldnn", "subclass"]
KINDS += ["without_storage", "functional", "conjugate"]


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_all_kinds(kind):
    # GIVEN a non-plain tensor as an attribute of a model
    tensor, expected = odd_tensors()[kind]
    model = nn.Module()
    object.__setattr__(model, kind, tensor)
    vars(model)[kind] = tensor

    # WHEN it is reported
    report = MemReporter(model).collect()

    # THEN its parts are rows with their true memory
    found = {row.name: (row.nbytes, name) for name, table in report.devices.items() for row in table.tensors}
    assert {name: entry for name, entry in found.items() if name.partition(".")[0] == kind} == expected
    assert report.text(verbose=True) and report._repr_html_()


def test_parts_that_are_made_when_asked_for(rows):
    # GIVEN wrappers whose parts do not exist yet; WHEN reported, THEN no part has the memory of a freed one
    model = nn.Module()
    for name in ("one", "two", "three"):
        vars(model)[name] = MadeWhenAskedFor(torch.zeros(256))
    found = {name: row for name, row in rows(MemReporter(model)).items() if name.endswith((".first", ".second"))}
    assert len(found) == 6 and all((row.nbytes, row.shares) == (1024, None) for row in found.values())


def test_dtensor(rows):
    # GIVEN a distributed tensor; WHEN reported, THEN its local part has its memory
    script = """
import torch, torch.distributed as dist
from memlab import MemReporter
dist.init_process_group("gloo", init_method="file://{}", rank=0, world_size=1)
from torch.distributed.tensor import distribute_module, distribute_tensor, init_device_mesh, Shard
model = torch.nn.Linear(256, 256, bias=False)
mesh = init_device_mesh("cpu", (1,))
model.weight = torch.nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Shard(0)]))
print([row for row in MemReporter(model).collect("cpu").devices["cpu"].tensors if "weight" in row.name])
dist.destroy_process_group()
"""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-c", script.format(f"{folder}/store")], capture_output=True, text=True)
    assert "name='weight.local_tensor', shape='(256, 256)', elements=65536, nbytes=262144" in done.stdout, done.stderr


def test_dead_proxy_and_objects_that_lie():
    # GIVEN a proxy of a freed object, and one with a false class that raises
    class Target:
        pass

    class Liar:
        @property
        def __class__(self):
            raise ReferenceError("do not look")

    target = Target()
    proxies = [weakref.proxy(target), Liar()]
    del target
    gc.collect()

    # WHEN all objects are inspected, THEN nothing is raised
    assert MemReporter().collect().devices is not None and len(proxies) == 2


def test_inside_of_tracing_modes():
    # GIVEN PyTorch modes that change operations and properties; WHEN reported inside, THEN nothing is raised
    model = nn.Linear(4, 4)
    with torch.device("meta"):
        assert "weight" in MemReporter(model).collect("cpu").devices["cpu"].names
    with FakeTensorMode():
        assert "weight" in MemReporter(model).collect("cpu").devices["cpu"].names
    torch.vmap(lambda row: (MemReporter(model).collect(), row * 2)[1])(torch.ones(3, 4))


def test_settings_of_the_collector_stay():
    # GIVEN the garbage collector on, then off; WHEN reported, THEN it is as before
    for switch in (gc.disable, gc.enable):
        switch()
        before = gc.isenabled()
        MemReporter(pre_collect=True).collect()
        assert gc.isenabled() == before


@pytest.mark.parametrize("wrong", [3, "model", nn.Linear])
def test_wrong_model(wrong):
    # GIVEN an object that is not a model; WHEN a reporter is created, THEN the error names the expected argument
    with pytest.raises(TypeError, match=r"memlab\.MemReporter takes a model"):
        MemReporter(wrong)


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")], ids=["str", "device"])
def test_device_filter(capsys, device):
    # GIVEN tensors on the CPU and on meta; WHEN one device is selected, THEN only this one is printed
    kept = [torch.zeros(3), torch.zeros(3, device="meta")]
    MemReporter().report(device=device)
    printed = capsys.readouterr().out
    assert printed.count("Storage on") == 1 and "Storage on cpu" in printed and len(kept) == 2


def test_tensors_are_found_also_when_the_collector_has_moved_them():
    # GIVEN a reporter that has searched once, and later tensors; WHEN collections of all generations run in between
    live = LiveTensors()
    live.all()
    kept = []
    for number in range(60):
        kept.append([torch.zeros(number + 1), torch.zeros(3).sigmoid()])
        if number % 7 == 3:
            del kept[number // 2]
        if number % 5 == 0:
            gc.collect(number % 3)

    # THEN it finds the result of a full search, once
    gc.disable()  # No collection comes between the two.
    everything = {id(entry) for age in (0, 1, 2) for entry in gc.get_objects(age) if issubclass(type(entry), torch.Tensor)}
    found = list(map(id, live.all()))
    gc.enable()
    assert set(found) == everything and len(found) == len(everything)

    # and when it is dropped, it leaves the collector alone
    before = len(gc.callbacks)
    del live
    assert len(gc.callbacks) == before - 1
