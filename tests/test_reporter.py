"""`memlab.MemReporter`: the examples of pytorch_memlab's README, what it got wrong, and sums that agree with PyTorch's."""

import gc
import json
import subprocess
import sys
import warnings
import weakref

import pytest
import torch
from conftest import PYTHON, ROOT
from memlab import MemReporter
from memlab._tensors.live_tensors import LiveTensors
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

EITHER_WAY = pytest.mark.parametrize("preload", [True, False], ids=["preloaded", "loaded late"])

LINEAR = """
import torch
from memlab import MemReporter
linear = torch.nn.Linear(1024, 1024).cuda()
reporter = MemReporter()
reporter.report()
"""

BACKWARD = """
import torch
from memlab import MemReporter

linear = torch.nn.Linear(1024, 1024).cuda()
inp = torch.Tensor(512, 1024).cuda()
# pass in a model to automatically infer the tensor names
reporter = MemReporter(linear)
out = linear(inp).mean()
print('========= before backward =========')
reporter.report()
out.backward()
print('========= after backward =========')
reporter.report()
"""

TIED = """
import torch
from memlab import MemReporter

linear = torch.nn.Linear(1024, 1024).cuda()
linear2 = torch.nn.Linear(1024, 1024).cuda()
linear2.weight = linear.weight
container = torch.nn.Sequential(
    linear, linear2
)
inp = torch.Tensor(512, 1024).cuda()
# pass in a model to automatically infer the tensor names

out = container(inp).mean()
out.backward()

# verbose shows how storage is shared across multiple Tensors
reporter = MemReporter(container)
reporter.report(verbose=True)
"""

LSTM = """
import torch
from memlab import MemReporter

lstm = torch.nn.LSTM(1024, 1024).cuda()
reporter = MemReporter(lstm)
reporter.report(verbose=True)
inp = torch.Tensor(10, 10, 1024).cuda()
out, _ = lstm(inp)
out.mean().backward()
reporter.report(verbose=True)
"""

HIDDEN = """
import torch
from memlab import MemReporter

linear = torch.nn.Linear(1024, 1024).cuda()
inp = torch.Tensor(512, 1024).cuda()
# pass in a model to automatically infer the tensor names
reporter = MemReporter(linear)
out = linear(inp * (inp + 2)).mean()
reporter.report()
"""

# What the README prints, by example: name, shape and size of each tensor, and the two sums.
_LINEAR_ROWS = ["weight (1024, 1024) 4.00M", "bias (1024,) 4.00K"]
_WITH_GRADIENTS = [
    *("weight (1024, 1024) 4.00M", "weight.grad (1024, 1024) 4.00M", "bias (1024,) 4.00K", "bias.grad (1024,) 4.00K"),
]
_INPUT_AND_OUTPUT = ["Tensor0 (512, 1024) 2.00M", "Tensor1 (1,) 512.00B"]
README = {
    "before and after backward": (
        BACKWARD,
        [
            ([*_LINEAR_ROWS, *_INPUT_AND_OUTPUT], 1573889, "6.00M", "6.00M"),
            ([*_WITH_GRADIENTS, *_INPUT_AND_OUTPUT], 2623489, "10.01M", "10.01M"),
        ],
    ),
    # The README names the tied weight by its first name only.
    "tied weights": (
        TIED,
        [
            (
                [
                    *("0.weight+1.weight (1024, 1024) 4.00M", "0.weight+1.weight.grad (1024, 1024) 4.00M"),
                    *("0.bias (1024,) 4.00K", "0.bias.grad (1024,) 4.00K"),
                    *("1.bias (1024,) 4.00K", "1.bias.grad (1024,) 4.00K"),
                    *_INPUT_AND_OUTPUT,
                ],
                2625537,
                "10.02M",
                "10.02M",
            )
        ],
    ),
    # In the README's first table the input is there already, and PyTorch then allocated 0.1M and 0.2M more for cuDNN.
    "LSTM": (
        LSTM,
        [
            (
                [
                    *("weight_ih_l0 (4096, 1024) 32.03M", "weight_hh_l0(->weight_ih_l0) (4096, 1024) 0.00B"),
                    *("bias_ih_l0(->weight_ih_l0) (4096,) 0.00B", "bias_hh_l0(->weight_ih_l0) (4096,) 0.00B"),
                ],
                8396800,
                "32.03M",
                "32.03M",
            ),
            (
                [
                    *("weight_ih_l0 (4096, 1024) 32.03M", "weight_ih_l0.grad (4096, 1024) 32.03M"),
                    "weight_hh_l0(->weight_ih_l0) (4096, 1024) 0.00B",
                    "weight_hh_l0.grad(->weight_ih_l0.grad) (4096, 1024) 0.00B",
                    *("bias_ih_l0(->weight_ih_l0) (4096,) 0.00B", "bias_ih_l0.grad(->weight_ih_l0.grad) (4096,) 0.00B"),
                    *("bias_hh_l0(->weight_ih_l0) (4096,) 0.00B", "bias_hh_l0.grad(->weight_ih_l0.grad) (4096,) 0.00B"),
                    *("Tensor0 (10, 10, 1024) 400.00K", "Tensor1 (10, 10, 1024) 400.00K"),
                    *("Tensor2 (1, 10, 1024) 40.00K", "Tensor3 (1, 10, 1024) 40.00K"),
                ],
                17018880,
                "64.92M",
                "64.92M",
            ),
        ],
    ),
    "memory that Python does not hold": (HIDDEN, [([*_LINEAR_ROWS, *_INPUT_AND_OUTPUT], 1573889, "6.00M", "8.00M")]),
}


def run(memlab, program, preload=True, **options):
    """Runs a program's text from a file, so that its lines have a name."""
    path = memlab.folder / "program.py"
    path.write_text(program)
    done = memlab.python("-W", "error", path, preload=preload, **options)
    assert done.code == 0, done.errors
    return done.output


def tables(output):
    """The printed tables: rows, elements, memory of the tensors, allocated memory."""
    found = []
    for table in output.split("Element type")[1:]:
        lines = [" ".join(line.split()) for line in table.splitlines()]
        first = lines.index("Storage on cuda:0") + 1
        last = next(number for number, line in enumerate(lines) if line.startswith("Total Tensors: "))
        _, _, elements, _, _, used = lines[last].split()
        allocated = lines[last + 1].removeprefix("The allocated memory on cuda:0: ")
        found.append((lines[first : last - 1], int(elements), used, allocated))
    return found


@EITHER_WAY
@pytest.mark.parametrize("example", README)
def test_readme(memlab, example, preload):
    # GIVEN an example of the README; WHEN it runs, THEN its tables have the README's names, shapes and numbers
    program, expected = README[example]
    assert tables(run(memlab, program, preload)) == expected


@EITHER_WAY
def test_readme_without_a_model(memlab, preload):
    # GIVEN no model; WHEN the README's first example runs, THEN its numbers are there under numbered names
    ((rows, elements, used, allocated),) = tables(run(memlab, LINEAR, preload))
    assert [row.split()[0] for row in rows] == ["Parameter0", "Parameter1"]
    assert sorted(row.split(" ", 1)[1] for row in rows) == ["(1024, 1024) 4.00M", "(1024,) 4.00K"]
    assert (elements, used, allocated) == (1049600, "4.00M", "4.00M")


@EITHER_WAY
def test_the_line_of_what_python_does_not_hold(memlab, preload):
    # GIVEN a product that only autograd keeps; WHEN it is reported, THEN its 2M are explained by the line that made it
    output = run(memlab, HIDDEN, preload)
    lines = [line.split() for line in output.splitlines()]
    assert ["program.py:9", "2.00M"] in [line[-2:] for line in lines]
    assert "Memory differs due to" in output


def test_example_has_pytorch_memlabs_form(memlab):
    # GIVEN the README's first example; WHEN it runs, THEN columns, rules and sums are where the README has them
    lines = run(memlab, LINEAR).splitlines()
    assert lines[:3] == [
        "Element type                                            Size  Used MEM",
        "-" * 79,
        "Storage on cuda:0",
    ]
    assert "Parameter0                                      (1024, 1024)     4.00M".removeprefix("Parameter0") in {
        line.removeprefix("Parameter0").removeprefix("Parameter1") for line in lines
    }
    assert lines[5:8] == [
        "-" * 79,
        "Total Tensors: 1049600 \tUsed Memory: 4.00M",
        "The allocated memory on cuda:0: 4.00M",
    ]


# Programs not written for this test. After each, `model`, `reporter` and everything else are still there.
PROGRAMS = {
    "transformers": """
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=1000)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
reporter = MemReporter(model)
reporter.add_optimizer(optimizer)
ids = torch.zeros(4, 64, dtype=torch.long, device="cuda")
for _ in range(2):
    optimizer.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
loss = model(input_ids=ids, labels=ids).loss
""",
    "nn.Transformer": """
model = torch.nn.Transformer(64, 4, 2, 2, 128, batch_first=True).cuda()
reporter = MemReporter(model)
out = model(torch.ones(4, 10, 64, device="cuda"), torch.ones(4, 9, 64, device="cuda"))
loss = out.sum()
""",
    "LSTM": """
model = torch.nn.LSTM(128, 256, num_layers=2).cuda()
optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
reporter = MemReporter(model)
reporter.add_optimizer(optimizer)
out, state = model(torch.ones(20, 4, 128, device="cuda"))
out.sum().backward()
optimizer.step()
out, state = model(torch.ones(20, 4, 128, device="cuda"))
""",
    "large blocks": """
kept = [torch.empty(n, dtype=torch.uint8, device="cuda") for n in (1, 513, 1 << 20, (1 << 20) + 1, 11 << 20, 3_000_000)]
views = [kept[-1][1000:], kept[-2].view(11, -1)[3:5], kept[0][:0]]
del kept[3]
reporter = MemReporter()
""",
}
SUMS = """
import json
report = reporter.collect(0)
device = report.devices["cuda:0"]
print(json.dumps({
    "tensors": sum(row.nbytes for row in device.tensors),
    "unseen": sum(row.nbytes for row in device.unseen),
    "outside": sum(row.nbytes for row in device.outside),
    "allocated": torch.cuda.memory_allocated(),
    "used": memlab.tracker.totals().used,
    "names": device.names,
    "what": [[row.category, row.layer, row.file and row.file.split("/")[-1], row.line] for row in device.unseen],
}))
"""


@EITHER_WAY
@pytest.mark.parametrize("name", PROGRAMS)
def test_sums(memlab, name, preload):
    # GIVEN a program with a graph that waits for backward
    program = f"import torch, memlab\nfrom memlab import MemReporter\n{PROGRAMS[name]}{SUMS}"

    # WHEN it is reported
    found = json.loads(run(memlab, program, preload))

    # THEN tensors and the rest sum to PyTorch's counter, and all rows to what the device has in use
    assert found["tensors"] + found["unseen"] == found["allocated"] > 0
    assert found["tensors"] + found["unseen"] + found["outside"] == found["used"]
    # and no tensor is counted under two names
    assert len(set(found["names"])) == len(found["names"])


def test_memory_for_backward_has_layers_and_lines(memlab):
    # GIVEN a forward of a library's model; WHEN it is reported, THEN what waits for backward has its layer and a line
    program = f"import torch, memlab\nfrom memlab import MemReporter\n{PROGRAMS['nn.Transformer']}{SUMS}"
    held = [row for row in json.loads(run(memlab, program))["what"] if row[0] == "activation"]
    layers = {layer for _, layer, _, _ in held}
    assert {"encoder.layers.1", "encoder.layers.1.self_attn", "decoder.layers.0.norm1"} <= layers
    # the line is that of the program that called the library
    assert {(file, line) for _, _, file, line in held} == {("program.py", 6)}


def test_optimizer_state_is_named_once(memlab):
    # GIVEN a training step with Adam, after which gradients have Python objects
    program = """
import torch, memlab, json
from memlab import MemReporter
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.Adam(model.parameters())
reporter = MemReporter(model)
reporter.add_optimizer(optimizer)
model(torch.ones(4, 256, device="cuda")).sum().backward()
optimizer.step()
wrappers = [parameter.grad for parameter in model.parameters()]
print(json.dumps([row[:1] + row[3:] for row in reporter.collect(0).devices["cuda:0"].tensors]))
print(torch.cuda.memory_allocated())
"""
    # WHEN it is reported
    rows, allocated = map(json.loads, run(memlab, program).splitlines())

    # THEN each gradient and each state has its name, once, and nothing else is there
    weight, bias = 256 * 256 * 4, 1024
    expected = {"weight": weight, "weight.grad": weight, "bias": bias, "bias.grad": bias}
    for name, nbytes in (("weight", weight), ("bias", bias)):
        expected |= {f"Adam.{name}.exp_avg": nbytes, f"Adam.{name}.exp_avg_sq": nbytes}
    assert {name: nbytes for name, nbytes, _ in rows} == expected
    assert len(rows) == len(expected)
    assert sum(expected.values()) == allocated


def test_reporter_keeps_nothing(memlab):
    # GIVEN a reporter that has reported a model, its optimizer and other tensors
    program = """
import torch, gc
from memlab import MemReporter
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.Adam(model.parameters())
reporter = MemReporter(model)
reporter.add_optimizer(optimizer)
out = model(torch.ones(4, 256, device="cuda")).sum()
out.backward()
optimizer.step()
report = reporter.collect()
print(reporter.collect(), repr(report), report._repr_html_()[:4])

# WHEN the program lets go of them, THEN they are gone while reporter and report live
del model, optimizer, out
gc.collect()
print(torch.cuda.memory_allocated())
"""
    assert run(memlab, program).splitlines()[-1] == "0"


def test_reporting_allocates_nothing(memlab):
    # GIVEN a program on the GPU; WHEN it is reported, THEN PyTorch's counters are what they were
    program = (
        PROGRAMS["transformers"]
        + """
before = torch.cuda.memory_stats()
reporter.report()
after = torch.cuda.memory_stats()
print({key for key in after if after[key] != before.get(key)})
"""
    )
    output = run(memlab, f"import torch, memlab\nfrom memlab import MemReporter\n{program}")
    assert output.splitlines()[-1] == "set()"


def test_second_gpu(memlab):
    # GIVEN tensors on two GPUs; WHEN one is asked for in any form, THEN only its tensors are reported
    program = """
import torch
from memlab import MemReporter
first, second = torch.ones(100, device="cuda:0"), torch.ones(2000, device="cuda:1")
reporter = MemReporter()
for device in (1, "cuda:1", torch.device("cuda:1"), torch.device(1)):
    found = reporter.collect(device).devices
    print(list(found), [row[1:4] for row in found["cuda:1"].tensors])
print(list(reporter.collect().devices), list(reporter.collect("cuda").devices))
torch.cuda.set_device(1)
print(list(reporter.collect("cuda").devices))
"""
    lines = run(memlab, program, devices=2).splitlines()
    assert set(lines[:4]) == {"['cuda:1'] [('(2000,)', 2000, 8192)]"}
    assert lines[4:] == ["['cuda:0', 'cuda:1'] ['cuda:0']", "['cuda:1']"]


def test_import_and_reporter_leave_cuda_alone(memlab):
    # GIVEN a program that has not used the GPU; WHEN it imports memlab and makes a reporter, THEN CUDA is not initialised
    program = """
import sys, memlab
print("torch" in sys.modules)
import torch
reporter = memlab.MemReporter(torch.nn.Linear(2, 2))
reporter.report()
print(torch.cuda.is_initialized())
"""
    lines = run(memlab, program, preload=False).splitlines()
    assert (lines[0], lines[-1]) == ("False", "False")


def test_without_cuda():
    # GIVEN no CUDA device; WHEN a model is reported
    program = "import torch, memlab\nmodel = torch.nn.Linear(256, 256)\nmemlab.MemReporter(model).report()"
    done = subprocess.run(
        [PYTHON, "-c", program],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{ROOT}/python", "CUDA_VISIBLE_DEVICES": ""},
    )

    # THEN the tensors on the CPU are reported, and one line says that there is no GPU
    assert "Storage on cpu\nweight                                            (256, 256)   256.00K\n" in done.stdout
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("memlab: ")


# On the CPU, in this process. Other tests' tensors can be there too: rows are found by name. ------------------------------


@pytest.fixture
def rows():
    """Reports rows of the CPU by name."""

    def collect(reporter):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return {row.name: row for row in reporter.collect("cpu").devices["cpu"].tensors}

    return collect


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8], ids=str)
def test_bytes_are_those_of_the_type(rows, dtype):
    # GIVEN buffers of a type; WHEN reported, THEN their memory is elements times bytes of the type, named by the buffer
    model = nn.Module()
    model.register_buffer("table", torch.zeros(1024, 1024, dtype=dtype))
    assert rows(MemReporter(model))["table"].nbytes == 1024 * 1024 * dtype.itemsize


def test_buffers_and_plain_attributes_are_named(rows):
    # GIVEN a model with buffers and a tensor as an attribute; WHEN reported, THEN they have its names
    model = nn.Sequential(nn.BatchNorm1d(8))
    model[0].cache = torch.zeros(3)
    found = rows(MemReporter(model))
    assert {"0.weight", "0.bias", "0.running_mean", "0.running_var", "0.num_batches_tracked", "0.cache"} <= found.keys()


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


def test_names_are_not_inherited(rows):
    # GIVEN named and numbered tensors that were reported and are gone
    model = nn.Linear(3, 5)
    others = [torch.zeros(77) for _ in range(50)]
    reporter = MemReporter(model)
    before = rows(reporter)
    gone = {name for name, row in before.items() if row.shape == "(77,)"} | {"weight", "bias"}
    del model, others
    gc.collect()

    # WHEN others take their places in memory, THEN these have names of their own
    fresh = [torch.zeros(78) for _ in range(200)]
    names = {row.name for row in rows(reporter).values() if row.shape == "(78,)"}
    assert len(names) == len(fresh)
    assert not names & gone


def test_numbers_stay(rows):
    # GIVEN a numbered tensor; WHEN reported twice, THEN it has the same number
    kept, reporter = torch.zeros(91), MemReporter()
    first, second = ([row.name for row in rows(reporter).values() if row.shape == "(91,)"] for _ in range(2))
    assert first == second and len(kept) == 91


def test_names_follow_a_model_that_changes(rows):
    # GIVEN a reporter made before the model gets a new parameter; WHEN reported, THEN the new one is named
    model = nn.Linear(3, 3)
    reporter = MemReporter(model)
    model.weight = nn.Parameter(torch.zeros(333, 3))
    assert rows(reporter)["weight"].shape == "(333, 3)"


def test_optimizer_without_a_model(rows):
    # GIVEN a reporter without a model, and optimizers, one with nested state
    weight = nn.Parameter(torch.zeros(111))
    optimizers = [torch.optim.Adam([weight]), torch.optim.LBFGS([weight], max_iter=2), torch.optim.Adam([weight])]
    reporter = MemReporter()
    for optimizer in optimizers:
        reporter.add_optimizer(optimizer)
        weight.grad = torch.ones(111)
        optimizer.step(lambda: (weight * weight).sum())

    # WHEN reported, THEN the state has the number of the parameter, and the optimizers are told apart
    found = rows(reporter)
    (name,) = (
        row.name
        for row in found.values()
        if row.name.startswith("Parameter") and row.shape == "(111,)" and ".grad" not in row.name
    )
    assert {f"Adam.{name}.exp_avg", f"Adam2.{name}.exp_avg"} <= found.keys()
    assert any(key.startswith(f"LBFGS.{name}.") for key in found)


def odd_tensors():
    """Tensors of all kinds, and the rows that they have."""
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
        }


class Strict(torch.Tensor):
    """A subclass that refuses every operation."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        raise RuntimeError("not supported")


@pytest.mark.parametrize(
    "kind", ["meta", "fake", "coo", "csr", "quantized", "ragged", "jagged", "lazy", "mkldnn", "subclass"]
)
def test_tensors_of_all_kinds(kind):
    # GIVEN a tensor that is no plain array, as an attribute of a model
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


def test_dtensor(rows):
    # GIVEN a distributed tensor; WHEN reported, THEN the part that is here has its memory
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
    # GIVEN a proxy of an object that is gone, and one whose class is a lie that raises
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

    # WHEN all objects are looked at, THEN nothing is raised
    assert MemReporter().collect().devices is not None and len(proxies) == 2


def test_inside_of_tracing_modes():
    # GIVEN modes of PyTorch that change what operations and properties do; WHEN reported inside, THEN nothing is raised
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
    # GIVEN something that is no model; WHEN a reporter is made, THEN the error says what it takes
    with pytest.raises(TypeError, match=r"memlab\.MemReporter takes a model"):
        MemReporter(wrong)


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")], ids=["str", "device"])
def test_device_filter(capsys, device):
    # GIVEN tensors on the CPU and on meta; WHEN one device is asked for, THEN only this one is printed
    kept = [torch.zeros(3), torch.zeros(3, device="meta")]
    MemReporter().report(device=device)
    printed = capsys.readouterr().out
    assert printed.count("Storage on") == 1 and "Storage on cpu" in printed and len(kept) == 2


def test_tensors_are_found_also_when_the_collector_has_moved_them():
    # GIVEN a reporter that has looked once, and tensors made since; WHEN collections of all ages run in between
    live = LiveTensors()
    live.all()
    kept = []
    for number in range(60):
        kept.append([torch.zeros(number + 1), torch.zeros(3).sigmoid()])
        if number % 7 == 3:
            del kept[number // 2]
        if number % 5 == 0:
            gc.collect(number % 3)

    # THEN it finds what a look at all objects finds, once
    everything = {id(entry) for age in (0, 1, 2) for entry in gc.get_objects(age) if issubclass(type(entry), torch.Tensor)}
    found = list(map(id, live.all()))
    assert set(found) == everything and len(found) == len(everything)

    # and when it is dropped, it leaves the collector alone
    before = len(gc.callbacks)
    del live
    assert len(gc.callbacks) == before - 1
