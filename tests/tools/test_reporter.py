"""`memlab.MemReporter` on a GPU: the examples of pytorch_memlab's README, and sums that agree with PyTorch's.

Names are in `test_reporter_names.py`, tensors of all kinds in `test_reporter_kinds.py`.
"""

import json
import subprocess

import pytest
from conftest import PYTHON, ROOT

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

# The README's printed figures, by example: name, shape and size of each tensor, and the two sums.
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
    # In the README's first table the input already exists, and PyTorch then allocated 0.1M and 0.2M more for cuDNN.
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
    # GIVEN no model; WHEN the README's first example runs, THEN its numbers appear under numbered names
    ((rows, elements, used, allocated),) = tables(run(memlab, LINEAR, preload))
    assert [row.split()[0] for row in rows] == ["Parameter0", "Parameter1"]
    assert sorted(row.split(" ", 1)[1] for row in rows) == ["(1024, 1024) 4.00M", "(1024,) 4.00K"]
    assert (elements, used, allocated) == (1049600, "4.00M", "4.00M")


@EITHER_WAY
def test_the_line_of_what_python_does_not_hold(memlab, preload):
    # GIVEN a product that only autograd keeps; WHEN it is reported, THEN its 2M have the line that allocated it
    output = run(memlab, HIDDEN, preload)
    lines = [line.split() for line in output.splitlines()]
    assert ["program.py:9", "2.00M"] in [line[-2:] for line in lines]
    assert "Memory without a tensor in Python:" in output


def test_example_has_pytorch_memlabs_form(memlab):
    # GIVEN the README's first example; WHEN it runs, THEN columns, rules and sums are placed as in the README
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


# Programs not written for this test. `model`, `reporter` and all other objects stay alive after each.
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

    # THEN tensors and the rest sum to PyTorch's counter, and all rows to the device's used bytes
    assert found["tensors"] + found["unseen"] == found["allocated"] > 0
    assert found["tensors"] + found["unseen"] + found["outside"] == found["used"]
    # and no tensor is counted under two names
    assert len(set(found["names"])) == len(found["names"])


def test_memory_for_backward_has_layers_and_lines(memlab):
    # GIVEN a forward of a library's model; WHEN it is reported, THEN tensors saved for backward have a layer and a line
    program = f"import torch, memlab\nfrom memlab import MemReporter\n{PROGRAMS['nn.Transformer']}{SUMS}"
    held = [row for row in json.loads(run(memlab, program))["what"] if row[0] == "activation"]
    layers = {layer for _, layer, _, _ in held}
    assert {"encoder.layers.1", "encoder.layers.1.self_attn", "decoder.layers.0.norm1"} <= layers
    # the line is that of the program that called the library
    assert {(file, line) for _, _, file, line in held} == {("program.py", 6)}


def test_what_keeps_a_graph_alive_is_named(memlab):
    # GIVEN a list of losses whose graphs keep memory that no tensor in Python has, in a function that ends with a report
    program = """
import torch, memlab, json
from memlab import MemReporter
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Tanh(), torch.nn.Linear(512, 512)).cuda()
reporter = MemReporter(model)
history = []
for _ in range(4):
    history.append(model(torch.ones(256, 512, device="cuda")).square().mean())
reporter.report()
device = reporter.collect(0, holders=True).devices["cuda:0"]
[holder] = device.holders
before = torch.cuda.memory_allocated()
history.clear()
print(json.dumps([holder.names, holder.bytes, holder.releases, before - torch.cuda.memory_allocated(),
                  sum(row.nbytes for row in device.unseen if row.category != "workspace")]))
"""
    # WHEN the report is printed, THEN it ends with the list, and the bytes that its graphs keep
    *text, figures = run(memlab, program).splitlines()
    names, held, releases, freed, unseen = json.loads(figures)
    at = text.index("It is kept alive by:")
    assert text[at + 1].split()[:3] == ["list", "history", "program.py:8"]
    # AND its release frees the promised bytes, more than what the table does not see
    assert (names, held, releases) == (["history"], unseen, freed) and freed > unseen > 0


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

    # THEN each gradient and each state has its name, once, and nothing else is listed
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
    # GIVEN a program on the GPU; WHEN it is reported, THEN PyTorch's counters are unchanged
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
    # GIVEN tensors on two GPUs; WHEN one is selected in any form, THEN only its tensors are reported
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
    # GIVEN a program that has not used the GPU; WHEN it imports memlab and creates a reporter, THEN CUDA is not initialised
    program = """
import sys, memlab
print("torch" in sys.modules)
import torch
reporter = memlab.MemReporter(torch.nn.Linear(2, 2))
reporter.report()
print(torch.cuda.is_initialized())
"""
    lines = run(memlab, program, preload=False, fresh=True).splitlines()
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

    # THEN the tensors on the CPU are reported, and one line reports the missing GPU
    assert "Storage on cpu\nweight                                            (256, 256)   256.00K\n" in done.stdout
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("memlab: ")


MIXED = """
import torch
from memlab import MemReporter
class Refuses(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        raise RuntimeError("not supported")
large = torch.empty(11 << 20, dtype=torch.uint8, device="cuda")
model = torch.nn.Linear(16, 16).cuda()
optimizer = torch.optim.Adam(model.parameters())
reporter = MemReporter(model)
reporter.add_optimizer(optimizer)
model(torch.ones(4, 16, device="cuda")).sum().backward()
optimizer.step()
views = [large[7:], large[:0], model.weight.detach().t()[3:, :2]]
others = [torch.ones(2, 3, device=device) for device in ("cpu", "meta")] + [torch.zeros((), device="cuda")]
"""
ODD = """
odd = [torch.eye(8, device="cuda").to_sparse(), torch.ones(300, device="cuda").as_subclass(Refuses)]
import warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Quantized tensors are deprecated.
    odd += [torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8), torch.ones(3, 3, device="meta")]
"""


@EITHER_WAY
def test_pytorch_without_dlpacks_functions(memlab, preload):
    # GIVEN tensors of many kinds; WHEN they are reported with PyTorch as it is, and as if it had no table of DLPack's
    shown = """
for device, table in reporter.collect().devices.items():
    print(device, *table.tensors, table.foreign, table.unseen, sep="\\n")
"""
    program = MIXED + ODD + shown
    take_away = 'vars(torch.Tensor).get("__dlpack_c_exchange_api__") and delattr(torch.Tensor, "__dlpack_c_exchange_api__")'
    program_without = program.replace("import torch\n", f"import torch; {take_away}\n", 1)

    # THEN both reports are the same
    assert run(memlab, program, preload) == run(memlab, program_without, preload) != ""


def test_other_tensors_change_no_row(memlab):
    # GIVEN tensors, some with more memory in their blocks than they need
    shown = """
rows = reporter.collect(0).devices["cuda:0"].tensors
print([row for row in rows if "weight" in row.name or "bias" in row.name])
print([row[1:4] for row in rows if row.elements > 1_000_000])
"""
    before = run(memlab, MIXED + shown)

    # WHEN non-plain tensors exist too, THEN the report of the plain ones is unchanged
    assert run(memlab, MIXED + ODD + shown) == before
    # also of one whose block is larger than the tensor: the allocator does not split off a rest of 1 MiB
    assert f"('(11534336,)', {11 << 20}, {12 << 20})" in before


FROZEN = """
import gc, torch
from memlab import MemReporter
linear = torch.nn.Linear(1024, 1024).cuda()
gc.freeze()
for _ in range(2):
    MemReporter(linear).report()
"""


def test_frozen_tensors_are_reported_as_hidden(memlab):
    # GIVEN tensors from before a gc.freeze(); WHEN they are reported twice
    script = memlab.folder / "program.py"
    script.write_text(FROZEN)
    run = memlab.python(script, preload=False, env={"PYTHONPATH": ROOT / "python"})
    # THEN one line explains why they are missing
    assert run.code == 0
    assert run.errors.count("gc.freeze() hides earlier tensors") == len(run.errors.splitlines()) == 1
    # AND no such line appears without it
    script.write_text(FROZEN.replace("gc.freeze()", ""))
    assert memlab.python(script, preload=False, env={"PYTHONPATH": ROOT / "python"}).errors == ""
