"""memlab.Courtesy: memory leaves the GPU and comes back, with every promised byte, alias and address."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ON_GPU, ROOT
from moving import Program

PROGRAMS = Path(__file__).parent / "programs"

MIB = 1 << 20
ENVIRONMENT = {"PYTHONPATH": str(ROOT / "python"), "PYTHONWARNINGS": "ignore", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}

# Ways to start the program: as any program, and with `memlab run --offload`.
IN_PLACE, OFFLOADED = False, True
BOTH = pytest.mark.parametrize("offload", [IN_PLACE, OFFLOADED], ids=["in place", "offloaded"])


def outcome(memlab, *arguments, offload=IN_PLACE, preload=False, memory="1GiB", **options):
    """Result of a function of `programs/courtesies.py`, and standard error."""
    env = ENVIRONMENT | options.pop("env", {}) | ({"MEMLAB_OFFLOAD": "1"} if offload else {})
    program = PROGRAMS / "courtesies.py"
    run = memlab.python(program, *arguments, preload=preload or offload, memory=memory, env=env, **options)
    assert run.code == 0, run.errors[-3000:]
    return json.loads(run.output), run.errors


@BOTH
def test_a_training_goes_on_as_if_nothing_had_happened(memlab, offload):
    # GIVEN a training run; WHEN its memory is yielded twice between steps, and once between a forward and its backward
    undisturbed, _ = outcome(memlab, "training", "undisturbed")
    yielding, errors = outcome(memlab, "training", "yielding", offload=offload)
    # THEN each step equals an undisturbed one: autograd's saved tensors, parameters, buffers, optimizer state
    assert yielding == undisturbed
    assert len({json.dumps(step) for step in yielding}) == 6
    assert "stayed" not in errors


@BOTH
def test_the_readme_of_pytorch_memlab(memlab, offload):
    # GIVEN the loop of its README; THEN it runs, and the tensor has the same bytes afterwards
    found, errors = outcome(memlab, "readme", offload=offload)
    assert found["same"] and len(found["waited"]) == 1
    assert errors == ""
    if offload == IN_PLACE:
        assert found["waited"] == [0]


@BOTH
def test_every_kind_of_tensor_and_alias(memlab, offload):
    # GIVEN views, tied weights, a parameter without gradient, gradients, sparse, inference, complex, TorchScript's, meta and
    # fake tensors, and a storage without a tensor
    found, _ = outcome(memlab, "aliases", offload=offload)
    # THEN bytes and shared storages are as before, and a write through one view shows in the other
    assert found["same"]
    assert found["view"] == [42, 42]
    assert found["others"] == [True, 1000, 0]
    assert found["sparse"] == [True, True, True]
    start, during, after = found["allocated"]
    moved, restored = found["moved"]
    assert moved == restored > 0 and start == after
    # AND PyTorch has freed all memory, or, when offloaded, has noticed nothing
    assert during == (start if offload else 0)
    assert found["at the same addresses"] or not offload


@BOTH
def test_memory_that_only_autograd_holds(memlab, offload):
    # GIVEN saved outputs, a custom function's saved tensors, and a hook's packed tensors
    found, _ = outcome(memlab, "autograd", offload=offload)
    # THEN all moved and came back, the unpacking hook was not called, and the backward runs
    start, during = found["allocated"]
    assert found["same"] and found["hooked"] == 0 and found["leaf"] == 4 * MIB
    assert found["moved"] >= start == 6 * 16 * MIB
    assert during == (start if offload else 0)


def test_a_pytorch_that_hides_what_autograd_saved_is_named(memlab):
    # GIVEN a PyTorch that hides autograd's saved tensors; THEN memlab reports the unmoved memory with that reason
    found, errors = outcome(memlab, "unshown")
    assert found["held"]
    nbytes, why = found["stayed"][0]
    assert nbytes == 4 * MIB and "or saved for backward, which PyTorch" in why and why in errors


def test_no_code_of_the_program_runs(memlab):
    # GIVEN classes, proxies and tensors that record every access
    found, _ = outcome(memlab, "watchful")
    # THEN the searches for memory do not access them
    assert found["moved"] == 4 * MIB
    assert (found["courteous"], found["reported"]) == ([], [])


def test_memory_that_python_cannot_reach_is_reported(memlab):
    # GIVEN a tensor that only a list in TorchScript holds
    found, errors = outcome(memlab, "unreachable")
    # THEN the rest moves, and the unmoved bytes are reported exactly
    assert found["allocated"] == [8 * MIB, 4 * MIB] and found["moved"] == 4 * MIB
    assert sum(row["nbytes"] for row in found["stayed"]) == 4 * MIB
    assert "4.00 MiB stayed on the GPU" in errors
    # AND for a recorded program, the report also identifies the memory
    found, errors = outcome(memlab, "unreachable", preload=True)
    (row,) = found["stayed"]
    assert row["nbytes"] == 4 * MIB and row["category"]
    assert "courtesies.py:" in row["line"] and row["line"].endswith(" unreachable")
    assert row["line"] in errors
    # AND offloading moves it too
    found, errors = outcome(memlab, "unreachable", offload=OFFLOADED)
    assert found["moved"] >= 8 * MIB and found["stayed"] == [] and errors == ""


def test_captured_graphs_are_refused(memlab):
    # GIVEN a CUDA graph, which uses memory by its address
    found, _ = outcome(memlab, "graph")
    # THEN nothing moves during the capture and afterwards, and the message suggests a fix
    assert "captured: yield memory before or after" in found["capturing"]
    assert "memlab run --offload" in found["captured"]
    assert found["unmoved"]
    # AND also while only memory of its pool is left
    assert "memlab run --offload" in found["its memory"]
    # AND without the graph memory moves
    assert found["moved"] == 4 * MIB


def test_captured_graphs_of_an_offloaded_program(memlab):
    # GIVEN a CUDA graph in a program started for offloading; THEN its memory is at the same addresses afterwards
    found, _ = outcome(memlab, "replayed", offload=OFFLOADED)
    assert "captured: yield memory before or after" in found["capturing"]
    assert found["moved"] > 0 and found["same"]


@pytest.mark.skipif(ON_GPU, reason="the sizes are those of the simulated card")
def test_storages_that_must_stay(memlab):
    # GIVEN storages that are shared with another process, in a separate memory pool, or used by another library
    found, errors = outcome(memlab, "unmovable")
    # THEN they stay in place with their bytes, and memlab reports the reasons
    assert found["same"]
    assert found["moved"] == 12 * MIB
    assert [nbytes for _, nbytes in found["stayed"]] == [20 * MIB, 8 * MIB, 4 * MIB]
    assert [why.split()[0] for why, _ in found["stayed"]] == ["used", "in", "shared"]
    assert found["allocated"] == 32 * MIB
    assert found["text"] in errors


def test_restoring_on_a_full_gpu(memlab):
    # GIVEN memory in host memory, and a GPU that was filled meanwhile
    found, _ = outcome(memlab, "full")
    # THEN restoring fails twice, takes no room, and names a fix; access to the tensors raises an error
    for error in found["errors"]:
        assert "OutOfMemoryError" in error and "256 MiB" in error and "call restore() again" in error
    assert found["unchanged"] and found["empty"] == [0] * 4 and found["used"]
    # AND once room is available it succeeds, with every byte
    assert found["restored"] == 256 * MIB and found["same"]


@pytest.mark.skipif(ON_GPU, reason="the sizes are those of the simulated card")
def test_restoring_while_another_process_has_the_gpu(memlab):
    # GIVEN an offloaded program, and another that has filled the GPU meanwhile
    found, _ = outcome(memlab, "full_of_another", offload=OFFLOADED)
    # THEN restoring fails until the other has ended, and then brings every byte back
    assert all(error.startswith("RuntimeError: ") for error in found["errors"])
    assert found["restored"] == 256 * MIB and found["same"]


def test_threads_that_use_the_gpu_wait(memlab):
    # GIVEN an offloaded program; WHEN one of its threads uses the GPU, THEN it waits for the restore, and finds its bytes
    found, _ = outcome(memlab, "threads", offload=OFFLOADED)
    assert found["waited"] and found["same"]


def test_a_restore_from_outside(memlab):
    # GIVEN a program that has yielded its memory, and blocks at its next use of the GPU
    with Program(memlab, sys.executable, PROGRAMS / "courtesies.py", "restored_from_outside", env=ENVIRONMENT) as program:
        assert program.process.stdout.readline() == "yielded\n"
        assert program.move["state"] == "offloaded"
        # WHEN `memlab restore` brings it back, THEN the program continues, and its own restore has nothing to do
        program.succeed("restore")
        assert json.loads(program.end()) == {"same": True, "restored": 0}


def test_interruptions(memlab):
    # GIVEN three tensors; WHEN Ctrl-C ends a yield between its copies, THEN nothing has moved
    found, _ = outcome(memlab, "interrupted")
    assert found["yield"] and found["unmoved"] and found["moved"] == 24 * MIB
    # AND WHEN it ends a restore between its copies, THEN the next restore brings every byte back
    assert found["restore"] and found["restored"] == 24 * MIB and found["same"]


def test_too_little_host_memory(memlab):
    # GIVEN a machine with room for 1 MiB; THEN nothing moves, and the message states the missing bytes
    found, _ = outcome(memlab, "host")
    assert "MemoryError: 4.00 MiB" in found["error"] and "nothing was moved" in found["error"]
    assert found["unmoved"] and found["restored"] == 0


def test_a_pinning_that_is_refused(memlab):
    # GIVEN a system that pins no memory; THEN memory moves through pageable memory
    found, _ = outcome(memlab, "readme", env={"SIMGPU_FAIL": "cuMemHostRegister:2"})
    assert found["same"] and found["waited"] == [0]


def test_memory_belongs_to_its_stream(memlab):
    # GIVEN memory allocated for a side stream; THEN PyTorch's allocator keeps it for that stream afterwards
    found, _ = outcome(memlab, "streams")
    assert found["streams"] == [True, 0] and found["same"]


@BOTH
def test_yielding_and_restoring_repeatedly(memlab, offload):
    found, _ = outcome(memlab, "repeated", *["offloaded"] * offload, offload=offload)
    # GIVEN nothing yielded; THEN restoring does nothing
    assert found["restored"] == 0
    # WHEN memory is yielded three times, THEN each yield moves newly allocated memory, and one restore brings all back
    first, second, third = found["moved"]
    assert first > 0 and third == 0
    assert found["restored again"] == [first + second, 0]
    assert found["same"] and found["same after"]
    if offload == IN_PLACE:
        assert (first, second, found["allocated"]) == (4 * MIB, 8 * MIB, 0)
        # AND leaving a `with` inside another does not restore
        assert found["inside"] == 0


def test_tensors_that_change_meanwhile(memlab):
    # GIVEN four tensors in host memory; WHEN one is deleted, and one gets new memory and values
    found, _ = outcome(memlab, "meanwhile")
    # THEN the other two come back, the new values stay, and the deleted one is gone
    assert found["moved"] == 16 * MIB and found["restored"] == 8 * MIB
    assert found["same"] == [True, True, True]


@pytest.mark.skipif(ON_GPU, reason="needs three cards")
def test_several_gpus(memlab):
    # GIVEN tensors on two of three GPUs; THEN both move, and the third gets no context
    found, _ = outcome(memlab, "devices", devices=3)
    assert found == {"moved": 8 * MIB, "during": [0, 0], "same": True, "where": [0, 1], "third": False}


@pytest.mark.parametrize("arguments, options", [((), {}), ((), {"env": {"CUDA_VISIBLE_DEVICES": ""}})])
def test_without_gpu_memory(memlab, arguments, options):
    # GIVEN a program that has not used a GPU, or has none; THEN nothing happens, and CUDA is not initialized
    found, errors = outcome(memlab, "nothing", *arguments, **options)
    assert found == {"moved": 0, "restored": 0, "initialized": False}
    assert errors == ("memlab: PyTorch finds no CUDA device: there is no GPU memory to yield\n" if options else "")


def test_without_pytorch(memlab):
    # GIVEN a program that does not import torch; THEN memlab does not either
    code = "import memlab, sys; memlab.Courtesy().yield_memory(); memlab.Courtesy().restore(); print('torch' in sys.modules)"
    run = memlab.run(sys.executable, "-c", code, preload=False, env=ENVIRONMENT, fresh=True)
    assert (run.code, run.output) == (0, "False\n")
    assert run.errors == "memlab: this program has not imported torch: there is no GPU memory to yield\n"


def test_a_timeout_that_is_no_time():
    run = subprocess.run(
        [sys.executable, "-c", "import memlab; memlab.Courtesy(timeout_s=float('nan'))"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    )
    assert "ValueError: timeout_s is a number of seconds" in run.stderr
