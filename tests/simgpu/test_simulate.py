"""`memlab simulate`: the cards as PyTorch and NVML see them, and the command itself."""

import json
import subprocess

import pytest
from conftest import PYTHON

WHAT_PYTORCH_SEES = """
import ctypes, json, torch, torch.nn.functional as F
card = torch.cuda.get_device_properties(0)
nvml, handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
name, memory, major, minor = ctypes.create_string_buffer(96), (ctypes.c_ulonglong * 3)(), ctypes.c_int(), ctypes.c_int()
nvml.nvmlInit_v2()
nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle))
nvml.nvmlDeviceGetName(handle, name, 96)
nvml.nvmlDeviceGetMemoryInfo(handle, memory)
nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
assert (name.value.decode(), major.value, minor.value) == (card.name, card.major, card.minor)

def attention(dtype):
    query = torch.randn(2, 8, 256, 64, device="cuda", dtype=dtype, requires_grad=True)
    output = F.scaled_dot_product_attention(query, query, query, is_causal=True)
    output.sum().backward()
    return output.grad_fn.name()

print(json.dumps({
    "name": card.name,
    "capability": [card.major, card.minor],
    "multiprocessors": card.multi_processor_count,
    "threads": card.max_threads_per_multi_processor,
    "memory": card.total_memory,
    "board_mib": memory[0] >> 20,
    "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
    "attention": [attention(torch.float32), attention(torch.bfloat16)],
}))
"""

CARDS = {
    "t4": ("Tesla T4", [7, 5], 40, 1024, 15_095 << 20, 15_360, False),
    "a100-40gb": ("NVIDIA A100-SXM4-40GB", [8, 0], 108, 2048, 42_297_786_368, 40_960, True),
    "h100": ("NVIDIA H100 80GB HBM3", [9, 0], 132, 2048, 85_017_493_504, 81_559, True),
}


def simulate(memlab, *arguments, **environment):
    command = [memlab.command, "simulate", *arguments]
    return subprocess.run(command, cwd=memlab.folder, env=memlab.environment(**environment), capture_output=True, text=True)


@pytest.mark.parametrize("card", CARDS)
def test_pytorch_and_nvml_see_the_card(memlab, card):
    # GIVEN a card of the table; WHEN PyTorch runs on it
    done = simulate(memlab, "--card", card, "--", PYTHON, "-c", WHAT_PYTORCH_SEES)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    # THEN it and NVML see that card
    attention = seen.pop("attention")
    assert tuple(seen.values()) == CARDS[card]
    # AND attention runs on each, with PyTorch's kernels for such a card: a T4 has none for bfloat16
    assert all(name.endswith("Backward0") for name in attention)
    assert ("ScaledDotProduct" in attention[1]) == seen["bf16"]


# Queries the driver, which is quicker than importing PyTorch.
FREE = """
import ctypes
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
free, total, name = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
results = cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)
results += cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), cuda.cuDeviceGetName(name, 256, 0)
assert not any(results), results
print(free.value, name.value.decode())
"""


def test_the_context_is_that_of_the_card(memlab):
    def free(*options, **environment):
        done = simulate(memlab, *options, PYTHON, "-c", FREE, **environment)
        assert done.returncode == 0, done.stderr
        free, *name = done.stdout.split()
        return int(free), " ".join(name)

    # GIVEN an H100, whose context was measured; THEN the context uses 764 MiB
    assert free("--card", "H100") == (85_017_493_504 - (764 << 20), "NVIDIA H100 80GB HBM3")
    # AND a card given by its size has the same context, under memlab's name
    assert free("--card", "24GiB") == ((24 << 30) - (764 << 20), "NVIDIA SimGPU (memlab)")
    # AND --memory changes nothing else
    assert free("--card", "h100", "--memory", "30GiB") == ((30 << 30) - (764 << 20), "NVIDIA H100 80GB HBM3")
    # AND the default card is small; without an option, the environment selects the card
    assert free()[0] == (8 << 30) - (256 << 20)
    assert free(SIMGPU_CARD="t4")[1] == "Tesla T4"


def test_nested_commands_have_their_own_cards(memlab):
    # GIVEN a command that simulates another card; THEN its command sees that card
    inner = [memlab.command, "simulate", "--card", "t4", "--", PYTHON, "-c", FREE]
    done = simulate(memlab, "--card", "h100", "--memory", "9GiB", "--", *inner)
    assert done.stdout.split() == [str((15_095 << 20) - (540 << 20)), "Tesla", "T4"]


LOADS = "import ctypes, sys; [ctypes.CDLL(library) for library in sys.argv[1:]]"


def test_a_pytorch_without_cuda_is_reported(memlab):
    # GIVEN libraries with PyTorch's names, and a program that has loaded all of them, or those of a CPU build
    names = ["libtorch_cpu.so", "libc10_cuda.so"]
    for name in names:
        empty = ["cc", "-shared", "-o", memlab.folder / name, f"-Wl,-soname,{name}", "-x", "c", "/dev/null"]
        subprocess.run(empty, check=True)
    with_cuda, without = (
        simulate(memlab, PYTHON, "-c", LOADS, *(f"./{name}" for name in loaded)) for loaded in (names, names[:1])
    )
    # THEN the latter prints why it found no GPU, and runs as it would without one
    assert (with_cuda.returncode, with_cuda.stderr) == (0, "")
    assert without.returncode == 0 and "built without CUDA" in without.stderr


def test_a_replaced_ld_preload_is_reported(memlab):
    # GIVEN a program that replaces LD_PRELOAD within the simulation
    library = f"LD_PRELOAD={memlab.library}"
    done = simulate(memlab, "env", library, PYTHON, "-c", "import torch; torch.cuda.init()")
    # THEN NVIDIA's own runtime fails, and one line explains why
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if line.startswith("simgpu: LD_PRELOAD was replaced")] != []
    # AND if it keeps the previous value, it runs
    kept = simulate(memlab, "sh", "-c", f'{library}:$LD_PRELOAD exec "$0" "$@"', PYTHON, "-c", FREE)
    assert kept.returncode == 0 and "simgpu:" not in kept.stderr


def test_unknown_cards_and_programs_are_errors(memlab):
    # GIVEN an unknown card
    done = simulate(memlab, "--card", "a100", "true")
    # THEN the error lists the most similar ones first
    assert done.returncode == 2
    assert "write a size such as 24GiB, or one of a100-80gb, a100-40gb, " in done.stderr
    # AND each card in the list works
    for line in simulate(memlab, "--list").stdout.split("\n\n")[0].splitlines()[1:]:
        assert simulate(memlab, "--card", line.split()[0], "true").returncode == 0, line
    # AND a program that does not exist, or is not executable, is reported with a shell's exit codes
    assert simulate(memlab, "no-such-program").returncode == 127
    assert simulate(memlab, "/etc").returncode == 126
    # AND a program's own options are passed through
    assert simulate(memlab, "sh", "-c", "exit 7", "--memory").returncode == 7


COPIES = """
import re, torch
def held():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) >> 10
large = torch.empty(3 << 28, dtype=torch.int8, device="cuda")
values = torch.arange(5 << 20, dtype=torch.int32)
part = large[12345 * 4 :].view(torch.int32)[: values.numel()]
part.copy_(values)
before = held()
copy = large.clone()
assert torch.equal(copy[12345 * 4 :].view(torch.int32)[: values.numel()].cpu(), values)
copy[: 1 << 20].copy_(large[1 << 28 : (1 << 28) + (1 << 20)])
assert not copy[: 1 << 20].cpu().any()
print(held() - before)
"""


def test_copies_of_what_only_kernels_have_written_take_no_memory(memlab):
    # GIVEN 768 MiB on a card, of which a program has written 20 MiB; WHEN they are copied there
    done = simulate(memlab, PYTHON, "-c", COPIES)
    # THEN the copy has the written bytes, and the rest takes no memory of the machine
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 128
