"""Pages models on real GPUs: the zoo, the ways to run a paged model, ranks that share weights, a model over two GPUs."""

import json
import sys

from harness import OWN_PROGRAMS, PAGE, ROOT, Failed, Skip

WAYS = ["graph", "threads", "compiled", "frozen", "trained", "chunked", "share"]
WAYS_OVER_DEVICES = ["budgets", "threads", "frozen", "trained", "caching", "caching object", "graph", "refused"]
BUDGETS = ["min", "3MiB"]
SHARES = ["0.25", "0.6"]  # Of the weights, on each of two GPUs: half of them wait in host memory, or none.


def paged(harness, folder, *arguments, program="paged.py"):
    """Output of a program in tests/page/programs, one line per model."""
    real = [] if harness.simulated else ["--real"]
    env = {"PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'tests' / 'page'}"}
    run = harness.run(folder, sys.executable, PAGE / program, *real, *arguments, memlab=False, env=env, timeout=200)
    if run.code != 0:
        raise Failed(run.errors[-3000:])
    return [json.loads(line) for line in run.output.splitlines() if line.startswith("{")]


def check_zoo(harness, folder, budget):
    """Checks every unit's bytes at each use, results against the unpaged model, and the state."""
    names = ["resnet101", "vit", "attention", "direct-use", "tied", "shared", "recurrent", "mixed", "writing", "encoder"]
    names += ["names", "bf16", "gpt2", "llama", "t5"]
    fitting = names if budget == "min" else ["resnet101", "vit", "llama", "gpt2"]
    found = paged(harness, folder, *fitting, "--budget", budget)
    harness.note("paged", found)
    return [
        f"{one['model']}: {one}"
        for one in found
        if not (one["state"] and one["pinned"] and one["stage"] == "settled" and one["equal"])
    ]


def check_ways(harness, folder):
    """Checks a CUDA graph, threads, torch.compile, gradients through frozen weights, and chunk."""
    found = paged(harness, folder, *WAYS)
    harness.note("ways", found)
    return [f"{one['model']}: {one}" for one in found if not one["equal"] and not harness.simulated]


def check_chunked(harness, folder):
    """Checks the zoo with parts on the CPU, at ten capacities, with inputs from both; and tokens of all generate() ways."""
    (models,) = paged(harness, folder, program="chunked.py")
    (tokens,) = paged(harness, folder, program="chunked_generate.py")
    harness.note("chunked", {**models, **tokens})
    return [f"{name}: {count} of 10 capacities" for name, count in models.items() if count != 10]


def check_shared(harness, folder):
    """Checks two ranks, on a GPU each, that page separately and then together: host memory, bytes, results and GB/s."""
    if harness.devices < 2:
        return Skip(f"needs 2 GPUs, and PyTorch finds {harness.devices}: memory and speed of ranks are of a GPU each")
    # 4 GiB of weights, which each rank copies in every forward.
    size = [] if harness.simulated else ["--real", "--width", "4096", "--layers", "64", "--forwards", "20"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {"PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'tests' / 'page'}"}
    command = (sys.executable, *torchrun, PAGE / "shared_ranks.py", *size)
    run = harness.run(folder, *command, memlab=False, env=env, devices=2, timeout=300)
    if run.code != 0:
        raise Failed(run.errors[-3000:])
    ways = [json.loads(line) for line in run.output.splitlines() if line.startswith("{")]
    harness.note("shared", ways)
    wrong = []
    for way, times in zip(ways, (2, 1), strict=True):
        weights = way["ranks"][0]["weights"]
        host = sum(rank["host"] for rank in way["ranks"])
        harness.note(
            f"host memory, shared={way['shared']}",
            f"{host / weights:.3f} x the weights; GB/s by rank: {[rank['gigabytes_per_second'] for rank in way['ranks']]}",
        )
        if abs(host - times * weights) > weights / 100:
            wrong.append(f"shared={way['shared']}: {host} bytes of the host for {weights} of weights, not {times} x")
        for rank in way["ranks"]:
            if not (rank["pinned"] and rank["equal"] and rank["stage"] == "settled" and rank["compared"] > 0):
                wrong.append(f"shared={way['shared']}: {rank}")
    return wrong


def rows_of(harness, folder, program, *arguments):
    """JSON lines of a program on two GPUs."""
    env = {"PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'tests' / 'page'}"}
    real = [] if harness.simulated else ["--real"]
    command = (sys.executable, program, *real, *arguments)
    run = harness.run(folder, *command, memlab=False, env=env, devices=2, timeout=300)
    if run.code != 0:
        raise Failed(run.errors[-3000:])
    return [json.loads(line) for line in run.output.splitlines() if line.startswith("{")]


def check_devices(harness, folder):
    """Checks models over two GPUs: every unit's bytes at each use, and results bit-identical to those of one GPU."""
    if harness.devices < 2:
        return Skip(f"needs 2 GPUs, and PyTorch finds {harness.devices}")
    names = ["resnet101", "vit", "attention", "direct-use", "tied", "shared", "recurrent", "mixed", "writing", "encoder"]
    names += ["names", "bf16", "gpt2", "llama", "t5"]
    found = rows_of(harness, folder, PAGE / "paged_devices.py", *names)
    found += rows_of(harness, folder, PAGE / "paged_devices.py", *names, "--budget", "min")
    ways = rows_of(harness, folder, PAGE / "paged_devices.py", *WAYS_OVER_DEVICES)
    harness.note("over two GPUs", found + ways)
    wrong = [
        f"{one['model']}: {one}"
        for one in found
        if not (one["state"] and one["pinned"] and one["stage"] == "settled" and one["equal"])
    ]
    return wrong + [f"{one['model']}: {one}" for one in ways if not one["equal"] and not harness.simulated]


def measure_devices(harness, folder):
    """Compares memlab.page over two GPUs with accelerate's dispatch_model, each with the same memory for weights."""
    if harness.devices < 2:
        return Skip(f"needs 2 GPUs, and PyTorch finds {harness.devices}")
    # 6.4 GB of weights in bfloat16.
    size = [] if harness.simulated else ["--width", "8192", "--layers", "48", "--tokens", "1024", "--forwards", "20"]
    wrong = []
    for share in SHARES:
        ways = rows_of(harness, folder, OWN_PROGRAMS / "dispatched.py", *size, "--share", share)
        for way in ways:
            harness.note(f"{way['way']}, {share} of the weights on each GPU", way)
        if len(ways) < 2:
            harness.note("dispatch_model", "accelerate is not installed")
        wrong += [f"{way['way']}: {way}" for way in ways if not way["equal"]]
    return wrong
