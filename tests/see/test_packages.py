"""Memory that AOTInductor packages allocate belongs to the nodes that they name."""

import json
import math
import re
import shutil
import zipfile
from pathlib import Path

import pytest
from conftest import RELEASE, Memlab
from trace_reader import Trace

PROGRAMS = Path(__file__).parent / "programs"

PROGRAM = PROGRAMS / "packaged.py"
FLOAT = 4


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A package, built without memlab. CUDA's headers come with Triton and PyTorch."""
    triton = pytest.importorskip("triton")
    nvidia = pytest.importorskip("nvidia")
    folders = [file.parents[1] for root in nvidia.__path__ for file in Path(root).rglob("nv/target")]
    if shutil.which("g++") is None or not folders:
        pytest.skip("needs a C++ compiler, and the headers that come with PyTorch")
    toolkit = {
        "CUDA_HOME": Path(triton.__file__).parent / "backends" / "nvidia",
        "CPATH": folders[0],
        "LIBRARY_PATH": RELEASE / "simgpu",
    }
    folder = tmp_path_factory.mktemp("package")
    made = Memlab(folder).python(PROGRAM, "make", folder, preload=False, env=toolkit)
    assert made.code == 0, made.errors
    return folder / "net.pt2"


def model_of(package):
    """Lines of the function that runs the model, by number, from the source in a package."""
    with zipfile.ZipFile(package) as archive:
        (source,) = (name for name in archive.namelist() if name.endswith(".wrapper.cpp"))
        lines = archive.read(source).decode().splitlines()
    begin = next(number for number, line in enumerate(lines) if "::run_impl(" in line)
    end = next(number for number in range(begin, len(lines)) if lines[number].startswith("}"))
    return {number + 1: lines[number] for number in range(begin, end)}


def expected(lines):
    """(line, node, bytes) of each value that the model allocates, in order. Its node is the last one in the comment above
    the first operation that uses the value. The bytes are None for operations that allocate their own result."""
    sizes, found, waiting, node = {}, [], {}, None
    for number, text in lines.items():
        array = re.search(r"int64_t (int_array_\d+)\[\] = \{(.*)\}", text)
        allocation = re.search(r"aoti_torch_empty_strided\(\d+, (\w+), .*&(buf\d+)_handle", text)
        comment = re.search(r"Source Nodes: \[(.*?)\]", text)
        alias = re.search(r"auto (buf\d+) = std::move\((buf\d+)\)", text)
        if array:
            sizes[array[1]] = math.prod(int(size.strip("L ")) for size in array[2].split(","))
        elif allocation:
            found.append([number, None, sizes[allocation[1]] * FLOAT])
            waiting[allocation[2]] = found[-1]
        elif comment:
            node = comment[1].split(", ")[-1]
        elif alias and alias[2] in waiting:
            waiting[alias[1]] = waiting.pop(alias[2])
        elif node and "Handle" not in text:
            for value in re.findall(r"buf\d+", text):
                if value in waiting:
                    waiting.pop(value)[1] = node
            if "aoti_torch_cuda_convolution(" in text:
                found.append([number, node, None])
    return [tuple(value) for value in found]


def recorded(trace):
    """(line, node, bytes, layer, name of the calling layer) of the package's allocations, in order."""
    for event in trace.events:
        if event[0] != "a" or not event[6]:
            continue
        file, line, function = trace.frames[trace.stacks[event[6]][1]]
        if file.endswith(".wrapper.cpp"):
            yield line, function, event[5], trace.layer_name(event[7])


@pytest.mark.long
@pytest.mark.parametrize("preload", [True, False])
def test_memory_belongs_to_the_nodes_that_a_package_names(memlab, package, preload):
    # GIVEN a package, and the nodes of its values in its source
    values = expected(model_of(package))
    assert {"conv2d", "linear", "linear_1", "layer_norm"} <= {node for _, node, _ in values}
    # WHEN a program runs it, once alone and once in a model
    late = () if preload else (memlab.library,)
    done = memlab.python(PROGRAM, "run", package.parent, memlab.folder / "out.json", *late, preload=preload)
    assert done.code == 0, done.errors
    assert "memlab" not in done.errors, done.errors
    out = json.loads((memlab.folder / "out.json").read_text())
    found = list(recorded(Trace(done.trace)))
    # THEN every value is at the line that allocates it, with the node that its source names, in both runs, in order.
    # Workspaces of libraries are at lines of operations.
    lines = {line for line, _, _ in values}
    placed = [(line, node, size) for line, node, size, _ in found if line in lines]
    rounded = [(line, node, -(-size // 512) * 512 if size else None) for line, node, size in values]
    known = {line for line, _, size in values if size}
    assert [entry for entry in placed if entry[0] in known] == [entry for entry in rounded if entry[2]] * 2
    (convolution,) = ((line, node) for line, node, size in values if size is None)
    assert convolution in {(line, node) for line, node, _, _ in found}
    # AND the node is a layer, either a root or inside the module that calls the package
    for line, node, _, layer in found:
        assert layer in (node, f"inner.{node}"), (line, node, layer)
    assert {f"inner.{node}" for _, node, _ in values} <= {layer for *_, layer in found}
    # AND the sums are PyTorch's
    report = memlab.report(done.trace)
    (device,) = report["devices"]
    assert device["allocated_bytes"] == out["allocated"]
    # AND beside them the weights of the package, which it allocates from the driver
    (weights,) = (row["bytes_at_end"] for row in report["categories"] if row["name"] == "other_arrays")
    assert out["weights"] <= weights < out["weights"] + 4096
    assert sum(row["live_bytes_at_end"] for row in report["lines"]) == out["allocated"] + weights
