"""Blocks have the right category in programs of different structure, and with every PyTorch."""

import subprocess
from collections import Counter
from pathlib import Path

import pytest
from trace_reader import BACKWARD, FORWARD, OPTIMIZER, Trace

PROGRAMS = Path(__file__).parent / "programs"

WORKSPACE, COMMUNICATION, BLOCK = 8, 256, 1024
MIB = 1 << 20


def at_end(report):
    return Counter({category["name"]: category["bytes_at_end"] for category in report["categories"]})


def test_workspaces_and_closures(memlab):
    # GIVEN a model trained by closures that an optimizer calls
    run = memlab.python(PROGRAMS / "closure.py")
    assert run.code == 0, run.errors
    assert "memlab:" not in run.errors
    trace, report = Trace(run.trace), memlab.report(run.trace)
    assert trace.warnings == []
    called, compared, _ = (int(line) for line in run.output.split())
    blocks = [event for event in trace.events if event[0] == "a"]
    scratch = [event for event in blocks if event[8] & WORKSPACE]
    blocks = [event for event in blocks if not event[8] & WORKSPACE]
    phases = Counter((trace.line(event[6])[1], event[8] & 3) for event in blocks)
    # THEN the model's blocks belong to forward and backward, and the optimizer's to the optimizer
    assert phases[called, FORWARD] > 0 and phases[called, BACKWARD] > 0 and phases[called, OPTIMIZER] == 0
    assert phases[compared, OPTIMIZER] == 0 and phases[compared, BACKWARD] > 0
    made_by = Counter(trace.stack(event[6])[0][0].rpartition("/")[2] for event in blocks if event[8] & 3 == OPTIMIZER)
    assert {"lbfgs.py", "adam.py"} <= made_by.keys()
    # AND activations are live at the peak: at least the model's, of 512 × 1024 floats
    (activations,) = (row["bytes_at_peak"] for row in report["categories"] if row["name"] == "activation")
    assert activations >= 2 * MIB
    # AND only cuBLAS's workspaces, for forward and for backward, are workspaces
    assert len(scratch) >= 2 and all(event[5] >= MIB for event in scratch)
    assert max(event[5] for event in blocks) < 4 * MIB
    assert at_end(report)["workspace"] >= 4 * MIB


def test_a_missing_pytorch_function_is_reported(memlab):
    # GIVEN a PyTorch whose library lacks a function that others of its version have
    torch = memlab.folder / "torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "version.py").write_text("__version__ = '2.4.1+cu121'\n")
    library = torch / "lib" / "libtorch_cuda.so"
    subprocess.run(["cc", "-shared", "-o", library, "-Wl,-soname,libtorch_cuda.so", "-x", "c", "/dev/null"], check=True)
    # WHEN it is loaded, and memory is allocated
    load = f"import ctypes; ctypes.CDLL({str(library)!r}); "
    take = "ctypes.CDLL(None).cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(4096))"
    run = memlab.python("-c", load + take, fresh=True)
    # THEN memlab reports the missing function once for each effect, on stderr, in the trace and in the report
    said = [
        "PyTorch 2.4 has no at::cuda::getCurrentCUDABlasHandle(): cuBLAS workspaces count as memory of the line that first "
        "needed them (activations, gradients)",
        "PyTorch 2.4 has no at::cuda::CUDAGraph::capture_begin, at::cuda::CUDAGraph::capture_end, "
        "at::cuda::CUDAGraph::reset: private pools of CUDA graphs are not told apart",
    ]
    assert (run.code, run.errors) == (0, "".join(f"memlab: {line}\n" for line in said))
    assert Trace(run.trace).warnings == memlab.report(run.trace)["warnings"] == said


@pytest.mark.parametrize("mode", ["ddp", "views", "fsdp", "fsdp2"])
def test_communication(memlab, mode):
    # GIVEN a model of four layers whose gradients (and, if sharded, parameters) are exchanged between ranks
    run = memlab.python(PROGRAMS / "communication.py", mode)
    if mode == "fsdp2" and "No module named 'torch.distributed._composable.fsdp'" in run.errors:
        pytest.skip("this PyTorch has no FSDP2")
    assert run.code == 0, run.errors
    assert "memlab:" not in run.errors
    model = int(run.output)
    trace, report = Trace(run.trace), memlab.report(run.trace)
    held = at_end(report)
    exchanged = [event for event in trace.events if event[0] == "a" and event[8] & COMMUNICATION]
    live = sum(block.bytes for block in trace.at().blocks.values() if block.flags & COMMUNICATION)
    # THEN the buffers for the exchange are categorized, and each rank's own tensors keep their categories
    if mode == "ddp":
        assert held["ddp_bucket"] + held["communication"] == live >= held["ddp_bucket"] >= model
        assert held["parameter"] == held["gradient"] == held["optimizer_state"] == model
    elif mode == "views":
        # AND buckets whose memory is the gradients' count as gradients
        assert held["ddp_bucket"] + held["communication"] < model < live + 1
        assert held["parameter"] == held["optimizer_state"] == model
        # Some versions of PyTorch keep the first buckets, which held the gradients at first.
        assert held["gradient"] in (model, 2 * model)
    else:
        # AND temporarily gathered parameters are not this rank's parameters
        gathered = [event for event in exchanged if event[5] == model // 4]
        assert {event[8] & 3 for event in gathered} >= {FORWARD, BACKWARD}
        (most,) = (row["bytes_at_peak"] for row in report["categories"] if row["name"] == "gathered")
        assert most >= model // 4
        assert held["parameter"] == held["optimizer_state"] == model // 2
    # AND none of it counts as activations of the model
    assert held["activation"] < MIB


@pytest.mark.parametrize("model", ["with", "without"])
def test_tensors_that_a_script_keeps(memlab, model):
    # GIVEN averages in lists, a data set, and batches; or a script without a model
    run = memlab.python(PROGRAMS / "kept.py", *(["without"] if model == "without" else []))
    assert (run.code, run.errors) == (0, "")
    kept, given = map(int, run.output.split())
    # THEN only arguments of modules are inputs; the rest is in the category "other"
    held = at_end(memlab.report(run.trace))
    assert (held["other"], held["input"], held["activation"]) == (kept, given, 0)
